"""Newcomers, and sites that join or leave, in a federation of sites with data of their own."""

import numpy as np
import pytest
import torch
from memory_grid import MemoryGrid
from processes import command, finished, until

from fedpac.bundles import load_model
from fedpac.config import make_config
from fedpac.deploy.conductor import Plan, conduct_federation
from fedpac.deploy.desk import Desk, own_data
from fedpac.deploy.superlink import free_port
from fedpac.engines.flower.wire import Spec
from fedpac.engines.site import Site
from fedpac.newcomers import Reception
from fedpac.runs.execute import extend, saved_state, task_for
from fedpac.runs.folder import RunStore
from fedpac.server import Server

NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def data(tmp_path):
    """Four sites' samples: 8 x 8 pictures of three classes, two of which a site has."""
    for i, name in enumerate(NAMES):
        random = np.random.default_rng(i)
        y = (i + np.arange(30) % 2) % 3
        x = random.normal(size=(30, 1, 8, 8)).astype(np.float32)
        x[np.arange(30), 0, y] += 3
        np.savez(tmp_path / f"{name}.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    return tmp_path


def config(method="fedpac", sites=("a", "b", "c"), rounds=3, **federation):
    return make_config(
        {
            "method": method,
            "model": "logistic",
            "training": {"epochs": 1, "batch": 5, "lr": 0.05},
            "run": {"rounds": rounds, "evaluate_every": 1},
            "federation": {"sites": list(sites), "classes": 3, "shape": [1, 8, 8], **federation},
        }
    )


def serve(data, chosen, *here, newcomers=(), patience=0.0):
    """The server's part with these sites there; gives back what was said and the desks."""
    desks = {}
    for name in [*here, *newcomers]:
        samples, state = own_data(data / f"{name}.npz"), data / f"state-{name}"
        desks[100 + NAMES.index(name)] = Desk(name, state, samples, newcomer=name in newcomers)
    grid, said = MemoryGrid(desks), []
    keys = {grid.keys[node]: desk.name for node, desk in desks.items()}
    conduct_federation(grid, Plan(chosen, data / "run", keys, patience), said.append)
    return said, {desk.name: desk for desk in desks.values()}


def model_at(desk):
    return load_model(desk.folder / "model").module.state_dict()


def expected(data, chosen):
    """What the server would give to site d, in this process."""
    store = RunStore.open(data / "run")
    saved, client = saved_state(store, store.config()), 3
    task, method = task_for(chosen, 3, torch.zeros(1, 8, 8), client), chosen.make_method()
    server = Server(task, saved.server)
    server.round = saved.round
    spec = Spec(federation="0" * 32, config="", sites=("a",), classes=3, shape=(1, 8, 8))
    site = Site(task, method, {client: own_data(data / "d.npz")(spec, chosen, client)})
    down = Reception(method, server).welcome(client, 20, site.work)
    return site.model_of(client, "new", server.round + 1, down).state_dict()


@pytest.mark.parametrize("method", ["fedpac", "fedavg", "fedavg-ft"])
def test_a_newcomer_gets_its_model_after_the_last_round(data, method):
    chosen = config(method, newcomers=["d"])
    said, desks = serve(data, chosen, "a", "b", "c", newcomers=["d"])
    assert "site 'd' connected, a newcomer" in said
    assert "site 'd' has its model" in said
    rows = (data / "run" / "metrics.csv").read_text().splitlines()[1:]
    assert {row.split(",")[1] for row in rows} == {"0", "1", "2"}
    given, alike = model_at(desks["d"]), expected(data, chosen)
    assert given.keys() == alike.keys()
    assert all((given[name] == alike[name]).all() for name in given)
    assert "d" in (desks["d"].folder / "report.md").read_text()
    assert (desks["d"].folder / "metrics.csv").read_text().count("\n") == 2
    assert not list(desks["d"].folder.glob("client-*"))


def test_a_newcomer_comes_to_a_federation_that_is_finished(data):
    serve(data, config(), "a", "b", "c")
    before = (data / "run" / "metrics.csv").read_bytes()
    said, desks = serve(data, config(newcomers=["d"]), newcomers=["d"])
    assert "site 'd' has its model" in said
    assert (desks["d"].folder / "model").exists()
    assert (data / "run" / "metrics.csv").read_bytes() == before
    assert RunStore.open(data / "run").finished


def test_one_that_does_not_come_is_named(data):
    said, _ = serve(data, config(newcomers=["d"]), "a", "b", "c")
    assert "never fetched their model: d" in said


def test_a_method_without_a_shared_predictor_says_so(data):
    said, desks = serve(data, config("local", newcomers=["d"]), "a", "b", "c", newcomers=["d"])
    assert any(line.startswith("no model for site 'd': Local-only shares no predictive part") for line in said)
    assert not (desks["d"].folder / "model").exists()


def test_who_is_a_newcomer_is_for_both_sides_to_say(data):
    said, _ = serve(data, config(sites=("a", "b"), newcomers=["d"], rounds=1), "a", "b", "d")
    assert any("'d' is a newcomer: --newcomer" in line for line in said)
    said, _ = serve(data, config(sites=("a", "b"), rounds=1), newcomers=["a"])
    assert any("'a' is a participant of this federation, not a newcomer" in line for line in said)


def test_a_site_joins_and_another_leaves(data):
    serve(data, config("scaffold"), "a", "b", "c")
    store = RunStore.open(data / "run")
    extend(store, 5, add=["d"], remove=["a"])
    said, _ = serve(data, config("scaffold"), "a", "b", "c", "d")
    assert any("'a' has left this federation" in line for line in said)
    participants = [row.split(",")[1] for row in (data / "run" / "rounds.csv").read_text().splitlines()[1:]]
    assert participants == ["3"] * 5
    last = {
        row.split(",")[1] for row in (data / "run" / "metrics.csv").read_text().splitlines() if row.startswith("5,")
    }
    assert last == {"1", "2", "3"}
    names = [row.split(",")[1] for row in (data / "run" / "clients.csv").read_text().splitlines()[1:]]
    assert names == ["a", "b", "c", "d"]


@pytest.mark.slow
def test_with_real_processes_keys_and_tls(data):
    """Two clinics train; a third comes for a model, once more after the run has ended."""
    place = f"127.0.0.1:{free_port()}"
    (data / "federation.toml").write_text(config(sites=("a", "b"), newcomers=["d"]).to_toml())
    assert (
        finished(data, "certs", data / "certs", "--host", "127.0.0.1", *[w for n in "abd" for w in ("--site", n)])[0]
        == 0
    )
    server = ("serve", data / "federation.toml", "--address", place, "--certs", data / "certs", "--out", data / "run")

    def join(name, *more):
        key = ("--ca", data / "certs" / "ca.crt", "--key", data / "certs" / "sites" / f"{name}.key")
        return command(data, "join", place, "--data", data / f"{name}.npz", "--state", data / f"at-{name}", *key, *more)

    with command(data, *server) as serving, join("a"), join("b"), join("d", "--newcomer"):
        until(lambda: serving.poll() is not None, 180, "the run and the newcomer's model")
        assert serving.poll() == 0, serving.log.read_text()
    (first,) = (data / "at-d").glob("*/model/*.safetensors")
    model = first.read_bytes()
    first.unlink()
    with command(data, *server) as serving, join("d", "--newcomer"):
        until(lambda: serving.poll() is not None, 120, "the newcomer's model, from a finished run")
        assert serving.poll() == 0, serving.log.read_text()
    assert first.read_bytes() == model
