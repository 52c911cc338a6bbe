"""A finished run that is given more rounds: what was stays, and what comes is as it would have been."""

import tomllib

import pytest
import torch

from fedpac.api import load_run
from fedpac.config import make_config
from fedpac.engines import SerialEngine
from fedpac.errors import ConfigError, RunError
from fedpac.message import Message
from fedpac.methods import list_methods, make_method
from fedpac.runs.execute import advance, conduct, extend, resume, run, saved_state, task_for
from fedpac.runs.folder import RunStore
from fedpac.runs.origins import Census
from fedpac.runs.read import read_run
from fedpac.server import Server
from fedpac.testing.tiny import CLASSES, INPUTS, tiny_data
from small_run import exact, small

SOME = {"run__participation": 0.5}


def state(folder):
    """The round, the server's state and every client's, in bytes."""
    store = RunStore.open(folder)
    saved = saved_state(store, store.config())
    return (
        saved.round,
        Message(**saved.server).to_bytes(),
        {i: Message(**s).to_bytes() for i, s in saved.clients.items()},
    )


def rows(folder, table="metrics.csv"):
    return (folder / table).read_text().splitlines()


@pytest.mark.parametrize(
    "how", [{"method": "fedpac"}, {"method": "scaffold"}, {"method": "scaffold", **SOME, "run__everybody_last": False}]
)
def test_it_is_the_longer_run_to_the_last_byte(tmp_path, how):
    """With everybody in every round, or nothing special about the last one, the config is the longer run's, too."""
    run(small(rounds=4, **how), tmp_path / "short")
    before = rows(tmp_path / "short")
    summary = resume(tmp_path / "short", rounds=9)
    run(small(rounds=9, **how), tmp_path / "long")
    assert exact(tmp_path / "short") == exact(tmp_path / "long")
    assert state(tmp_path / "short") == state(tmp_path / "long")
    assert rows(tmp_path / "short")[: len(before)] == before
    assert (summary["rounds"], summary["resumed"]) == (9, 1)


def test_a_last_round_with_everybody_in_it_stays_in_the_config(tmp_path):
    """It is then another run than one that never ended there; its config gives the same numbers again."""
    run(small(rounds=4, method="scaffold", **SOME), tmp_path / "run")
    before = rows(tmp_path / "run", "rounds.csv")
    resume(tmp_path / "run", rounds=6)
    resume(tmp_path / "run", rounds=9)
    assert rows(tmp_path / "run", "rounds.csv")[: len(before)] == before
    values = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert values["run"]["ended"] == [4, 6]
    run(make_config(values), tmp_path / "again")
    assert exact(tmp_path / "again") == exact(tmp_path / "run")
    assert state(tmp_path / "again") == state(tmp_path / "run")
    participants = [line.split(",")[1] for line in rows(tmp_path / "run", "rounds.csv")[1:]]
    assert participants == ["2", "2", "2", "4", "2", "4", "2", "2", "4"]
    run(small(rounds=9, method="scaffold", **SOME), tmp_path / "long")
    assert rows(tmp_path / "long")[:9] == rows(tmp_path / "run")[:9]
    assert rows(tmp_path / "long") != rows(tmp_path / "run")


def test_a_round_that_was_evaluated_because_it_was_the_last_is_the_only_difference(tmp_path):
    run(small(rounds=5), tmp_path / "run")
    resume(tmp_path / "run", rounds=8)
    run(small(rounds=8), tmp_path / "long")
    extra = [line for line in rows(tmp_path / "run") if line.startswith("5,")]
    assert len(extra) == 8
    assert [line for line in rows(tmp_path / "run") if line not in extra] == rows(tmp_path / "long")
    assert state(tmp_path / "run") == state(tmp_path / "long")


def test_it_may_be_cut_off_at_any_moment(tmp_path):
    run(small(rounds=5), tmp_path / "run")
    run(small(rounds=5), tmp_path / "other")
    resume(tmp_path / "other", rounds=8)
    store = RunStore.open(tmp_path / "run")
    (store.path / "summary.json").unlink()  # cut off between the two files
    assert resume(store.path)["rounds"] == 5
    extend(store, 8)  # cut off before the first round
    assert not store.finished
    assert load_run(store.path).server.round == 5
    extend(store, 8)  # the same command again
    resume(store.path)
    assert exact(store.path) == exact(tmp_path / "other")


def test_what_cannot_be_extended_is_left_as_it_is(tmp_path):
    run(small(rounds=4), tmp_path / "run")
    store = RunStore.open(tmp_path / "run")

    def refused(rounds, told):
        before = {path.name: path.read_bytes() for path in store.path.iterdir()}
        with pytest.raises((RunError, ConfigError), match=told):
            resume(store.path, rounds=rounds)
        assert {path.name: path.read_bytes() for path in store.path.iterdir()} == before

    refused(4, "already has 4 rounds: extend it to more than that")
    refused(2_000_000, "run.rounds = 2000000")
    checkpoint = (store.path / "checkpoint.safetensors").read_bytes()
    (store.path / "checkpoint.safetensors").unlink()
    refused(9, "no checkpoint.safetensors to resume from")
    (store.path / "checkpoint.safetensors").write_bytes(checkpoint)


def test_a_run_that_was_interrupted_is_extended_as_if_it_had_been_longer_from_the_start(tmp_path):
    config = small(rounds=7, method="scaffold", **SOME)
    advance(config, tmp_path / "run", callbacks=[lambda report: report.round == 5])
    resume(tmp_path / "run", rounds=9)
    run(small(rounds=9, method="scaffold", **SOME), tmp_path / "long")
    assert exact(tmp_path / "run") == exact(tmp_path / "long")
    assert state(tmp_path / "run") == state(tmp_path / "long")


def test_a_round_that_was_chosen_before_it_was_extended_is_still_there(tmp_path):
    run(small(rounds=4, data__validation_share=0.3, data__samples=20), tmp_path / "run")
    first = load_run(tmp_path / "run", selected=True).server.round
    extend(RunStore.open(tmp_path / "run"), 6)
    assert load_run(tmp_path / "run", selected=True).server.round == first
    resume(tmp_path / "run")
    assert load_run(tmp_path / "run", selected=True).server.round >= first


def test_a_rate_that_falls_to_zero_in_the_last_round_cannot_be_extended(tmp_path):
    run(small(rounds=3, training__schedule="cosine"), tmp_path / "run")
    with pytest.raises(RunError, match="'cosine'"):
        resume(tmp_path / "run", rounds=5)


def test_a_run_that_lost_its_patience_has_nothing_to_extend(tmp_path):
    how = {"data__validation_share": 0.3, "data__samples": 20, "run__patience": 1, "training__lr": 1e-9}
    run(small(rounds=40, **how), tmp_path / "run")
    assert RunStore.open(tmp_path / "run").finished
    with pytest.raises(RunError, match=r"ended after round \d+ because of run.patience"):
        resume(tmp_path / "run", rounds=50)


def test_the_command_line(tmp_path, fedpac):
    run(small(rounds=3), tmp_path / "run")
    assert fedpac("resume", tmp_path / "run")[:2] == (0, f"{tmp_path}/run is finished; nothing to resume. "
                                                         "Use --rounds to extend it.\n")  # fmt: skip
    code, out, _ = fedpac("resume", tmp_path / "run", "--rounds", 5, "--no-figures")
    assert code == 0
    assert "round 5/5" in out
    code, _, err = fedpac("resume", tmp_path / "run", "--rounds", 5)
    assert code == 1
    assert "already has 5 rounds" in err


# --- sites that join a federation, or leave it ------------------------------------------------------------------------


def federate(folder, method, data, *names):
    """The rounds that a federation's folder still has to do, its sites in this process."""
    store = RunStore(folder)
    values = {
        "method": method,
        "model": "logistic",
        "training": {"epochs": 1, "batch": 4},
        "run": {"rounds": 3, "evaluate_every": 1, "checkpoint_every": 1, "min_replies": 1},
        "federation": {"sites": list(names), "classes": CLASSES, "shape": [INPUTS]},
    }
    with store.locked(create=True):
        config = store.config() if store.begun else make_config(values)
        sites = config.federation.sites
        task = task_for(config, CLASSES, torch.zeros(INPUTS), len(sites))
        rows = [(i, site, "", len(data[i].train), len(data[i].test)) for i, site in enumerate(sites)]
        census = Census("the sites' own data", rows, 0, {"note": "", "data": "at the sites"})
        conduct(config, store, task, census, lambda m: SerialEngine(task, m, data[: len(sites)]))
    return store


@pytest.mark.parametrize("method", list_methods())
def test_a_site_that_joins_takes_part_from_the_next_round_on(tmp_path, method):
    data = tiny_data((6, 6, 6))
    store = federate(tmp_path / "run", method, data, "a", "b")
    before = rows(store.path)
    extend(store, 5, add=["c"])
    assert store.config().federation.joined == {"c": 3}
    assert saved_state(store, store.config()).round == 3  # the checkpoint of two sites is still this run's
    federate(store.path, method, data)
    assert rows(store.path)[: len(before)] == before
    assert [line.split(",")[1] for line in rows(store.path, "rounds.csv")[1:]] == ["2", "2", "2", "3", "3"]
    assert {line.split(",")[1] for line in rows(store.path) if line.startswith("5,")} == {"0", "1", "2"}
    assert [line.split(",")[1] for line in rows(store.path, "clients.csv")[1:]] == ["a", "b", "c"]
    assert read_run(store.path).last_round == 5
    (store.path / "summary.json").unlink()
    federate(store.path, method, data)  # the newest checkpoint is of three, and nothing grows twice
    assert store.finished


def test_the_servers_mean_has_zeros_for_those_who_came(tmp_path):
    data = tiny_data((6, 6, 6))
    store = federate(tmp_path / "run", "scaffold", data, "a", "b")
    two = saved_state(store, store.config()).server["c"]
    task = task_for(store.config(), CLASSES, torch.zeros(INPUTS), 3)
    server = Server(task, {"c": two})
    make_method("scaffold").grow(server, 2)
    assert torch.allclose(server.state["c"], two * 2 / 3)


def test_who_may_join_and_leave(tmp_path):
    store = federate(tmp_path / "run", "fedavg", tiny_data((6, 6, 6)), "a", "b")
    for changes, told in (
        ({"add": ["c"]}, "is finished: to add or remove sites, also add rounds"),
        ({"rounds": 5, "add": ["b"]}, "site 'b' already takes part"),
        ({"rounds": 5, "remove": ["x"]}, "there is no site 'x'"),
        ({"rounds": 5, "remove": ["a", "b"]}, "no site would be left"),
        ({"rounds": 5, "add": ["no good name"]}, "federation.sites"),
    ):
        before = {path.name: path.read_bytes() for path in store.path.iterdir()}
        with pytest.raises((RunError, ConfigError), match=told):
            extend(store, **changes)
        assert {path.name: path.read_bytes() for path in store.path.iterdir()} == before
    extend(store, 5, remove=["a"])
    assert store.config().federation.left == ("a",)
    assert saved_state(store, store.config()).round == 3
    extend(store, add=["a"])  # it comes back, with the number it had
    assert (store.config().federation.left, store.config().federation.sites) == (None, ("a", "b"))
    run(small(rounds=2), tmp_path / "simulation")
    with pytest.raises(ConfigError, match="is a simulation"):
        extend(RunStore.open(tmp_path / "simulation"), 5, add=["c"])
