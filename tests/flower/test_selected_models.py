"""Other metrics, validation data, the round that they choose and early stopping, with data at the sites."""

import csv
import json

import numpy as np
import pytest
import tomli_w
from memory_grid import MemoryGrid
from processes import command, running, until

from fedpac.api import load_run
from fedpac.bundles import load_model
from fedpac.config import make_config
from fedpac.config_values import parse_toml
from fedpac.deploy.certs import make_certificates
from fedpac.deploy.conductor import Plan, conduct_federation
from fedpac.deploy.desk import Desk, own_data
from fedpac.deploy.superlink import free_port
from fedpac.deploy.trial import join_command, run_trial
from fedpac.runs.execute import run
from small_run import small

NAMES = ("a", "b", "c")
LONGER = ("scaffold", "fedem", "apfl")
STATED = {
    "model": "logistic",
    "training": {"epochs": 1, "batch": 4, "lr": 0.3},
    "run": {
        "rounds": 12,
        "evaluate_every": 1,
        "metrics": ["auroc", "balanced-accuracy"],
        "select_by": "balanced-accuracy",
        "patience": 4,
    },
}


@pytest.fixture
def data(tmp_path):
    """Three sites' samples, of classes that are hard to tell apart: validation does not choose the last round."""
    (tmp_path / "data").mkdir()
    for i, name in enumerate(NAMES):
        random = np.random.default_rng(i)
        y = (i + np.arange(60) % 2) % 3
        x = random.normal(size=(60, 1, 4, 4)).astype(np.float32)
        x[np.arange(60), 0, y] += 0.4
        arrays = {"x_train": x[:40], "y_train": y[:40], "x_test": x[40:], "y_test": y[40:]}
        np.savez(tmp_path / "data" / f"{name}.npz", **arrays)
    return tmp_path


def at_sites(method):
    return {
        **STATED,
        "method": method,
        "federation": {"sites": list(NAMES), "classes": 3, "shape": [1, 4, 4], "validation_share": 0.3},
    }


def simulated(folder, method):
    """The same on this machine, from the same files."""
    where = {"scenario": "natural", "path": str(folder / "data"), "min_samples": 2, "validation_share": 0.3}
    stated = {**STATED, "method": method, "data": where, "run": {**STATED["run"], "engine": "serial"}}
    run(make_config(stated), folder / "serial")
    return json.loads((folder / "serial" / "summary.json").read_text())


def over_a_grid(folder, method):
    desks = {100 + i: Desk(n, folder / f"at-{n}", own_data(folder / "data" / f"{n}.npz")) for i, n in enumerate(NAMES)}
    grid = MemoryGrid(desks)
    keys = {grid.keys[node]: desk.name for node, desk in desks.items()}
    conduct_federation(grid, Plan(make_config(at_sites(method)), folder / "run", keys, 0.0), lambda line: None)
    return [desk.folder for desk in desks.values()]


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def same_and_selected(folder, method, places):
    """The server has a simulation's numbers; each site has its part of them, and the model of the selected round."""
    summary = simulated(folder, method)
    ours = json.loads((folder / "run" / "summary.json").read_text())
    reported = summary["reported"]
    chosen, stopped = summary[reported]["selected"]["round"], summary["rounds"]
    assert ours[reported] == summary[reported]
    assert ours["rounds"] == stopped == chosen + 4 < 12, "patience ended it"
    for table in ("metrics.csv", "scores.csv"):
        assert (folder / "run" / table).read_bytes() == (folder / "serial" / table).read_bytes(), table
    kept = load_run(folder / "serial", selected=True)
    for client, place in enumerate(places):
        theirs = [row for row in rows(folder / "serial" / "scores.csv") if row.pop("client") == str(client)]
        mine = rows(place / "scores.csv")
        assert sorted(tuple(row.values()) for row in mine) == sorted(tuple(row.values()) for row in theirs)
        given, expected = load_model(place / "model").module.state_dict(), kept.model(client).module.state_dict()
        for name, tensor in expected.items():
            assert (given[name] == tensor.to(given[name].dtype)).all(), f"{method}: client {client}'s {name}"
        assert f"model after round {chosen}, which validation data chose" in (place / "report.md").read_text()
    return chosen


@pytest.mark.parametrize("method", ["fedpac", "ditto", *(pytest.param(m, marks=pytest.mark.slow) for m in LONGER)])
def test_sites_keep_the_model_of_the_round_that_validation_data_chose(data, method):
    chosen = same_and_selected(data, method, over_a_grid(data, method))
    assert chosen > 1


@pytest.mark.parametrize("section", ["data", "federation"])
def test_either_section_says_how_much_is_held_out(section):
    stated = at_sites("fedavg")
    del stated["federation"]["validation_share"]
    stated[section] = {**stated.get(section, {}), "validation_share": 0.25}
    told = make_config(parse_toml(make_config(stated).to_toml(), "what a site is told"))
    assert told.validation_share == 0.25


@pytest.mark.slow
def test_with_real_processes(data):
    make_certificates(data / "certs", ["localhost"], NAMES)
    (data / "federation.toml").write_text(tomli_w.dumps(at_sites("ditto")))
    place = f"127.0.0.1:{free_port()}"
    serve = ("serve", data / "federation.toml", "--address", place, "--certs", data / "certs", "--out", data / "run")

    def join(name):
        joining = join_command(place, name, data / "certs", data / f"at-{name}")
        return running([*joining, "--data", str(data / "data" / f"{name}.npz")], data, name)

    with command(data, *serve) as server, join("a"), join("b"), join("c"):
        until(lambda: server.poll() is not None, 300, "the run")
        assert server.poll() == 0, server.log.read_text()
    federation = (data / "run" / ".federation").read_text()[:12]
    same_and_selected(data, "ditto", [data / f"at-{n}" / federation for n in NAMES])


@pytest.mark.slow
def test_a_trial_brings_the_selected_states_home(tmp_path):
    def stated(engine):
        return small(
            8, "ditto", data__validation_share=0.3, run__evaluate_every=1, run__patience=2, run__engine=engine,
            training__lr=0.3,
        )  # fmt: skip

    run(stated("serial"), tmp_path / "serial")
    run_trial(stated("flower"), tmp_path / "run", None, lambda line: None)
    ours, theirs = (load_run(tmp_path / out, selected=True) for out in ("run", "serial"))
    assert 0 < ours.server.round == theirs.server.round < len(rows(tmp_path / "run" / "rounds.csv"))
    for client in range(4):
        given, expected = (result.model(client).module.state_dict() for result in (ours, theirs))
        assert all((given[name] == expected[name]).all() for name in expected)
