"""Tuning on validation data: the same budget for all, nothing done twice, nothing chosen by test data."""

import json

import pytest

from fedpac.config import make_config
from fedpac.config_values import read_config
from fedpac.errors import ConfigError, RunError
from fedpac.runs.read import read_run
from fedpac.tuning import Choice, Range, default_space, parsed, tune

VALUES = {
    "method": {"name": "fedprox"},
    "model": "logistic",
    "data": {"dataset": "digits", "clients": 3, "samples": 15, "test_samples": 10, "validation_share": 0.3},
    "training": {"epochs": 1},
    "run": {"rounds": 2, "evaluate_every": 1, "engine": "serial"},
}


def search(folder, trials, **more):
    return tune({**VALUES, **more}, folder, trials)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    return search(tmp_path_factory.mktemp("tuned") / "fedprox", 7)


def test_the_best_trial_is_that_of_validation_data(tuned):
    values = {}
    for trial in tuned.trials:
        run = read_run(tuned.folder / trial.folder)
        selection = run.selection(run.reported)
        assert selection is not None
        assert (trial.round, trial.value) == (selection.best, selection.seen[selection.best])
        values[trial.number] = trial.value
        for key, value in trial.params.items():
            section, _, name = key.partition(".")
            assert run.config[section][name] == value
    assert tuned.best.number == max(values, key=lambda number: (values[number], -number))
    best = make_config(read_config(tuned.folder / "best.toml"))
    assert best.training.lr == tuned.best.params["training.lr"]
    about = json.loads((tuned.folder / "tuning.json").read_text())
    assert about["budget"]["trials"] == len(about["trials"]) == 7
    assert about["budget"]["rounds"] == 2
    assert about["best"]["number"] == tuned.best.number


def test_the_first_trial_has_the_defaults(tuned):
    assert tuned.trials[0].params == {"training.lr": 0.01, "method.mu": 0.01}
    assert len({str(trial.params) for trial in tuned.trials}) == 7


def test_an_interrupted_search_goes_on_as_if_it_had_not_been(tuned, tmp_path):
    folder = tmp_path / "fedprox"
    search(folder, 2)
    with (folder / "trials.jsonl").open("a") as file:
        file.write('{"number": 2, "par')  # a kill in the middle of a line
    again = search(folder, 7)
    assert again.trials == tuned.trials
    ran = sorted(path.name for path in folder.glob("trial-*"))
    assert len(ran) == 7


def test_nothing_is_run_twice(tuned):
    before = {path: path.stat().st_mtime_ns for path in tuned.folder.glob("trial-*/metrics.csv")}
    assert search(tuned.folder, 7).best == tuned.best
    assert {path: path.stat().st_mtime_ns for path in tuned.folder.glob("trial-*/metrics.csv")} == before


def test_another_budget_is_another_folder(tuned):
    with pytest.raises(RunError, match="different settings or a different budget"):
        search(tuned.folder, 7, run={**VALUES["run"], "rounds": 3})


def test_trials_that_diverge_count(tmp_path):
    values = {**VALUES, "training": {"epochs": 1, "lr": 30.0, "weight_decay": 1.0}, "method": {"name": "local"}}
    with pytest.raises(RunError, match="diverged in all 2 trials"):
        tune({**values, "run": {**VALUES["run"], "rounds": 60}}, tmp_path / "local", 2, ["training.lr=90.0:99.0"])


def test_what_is_searched_by_default():
    space = default_space(make_config({"method": {"name": "fedpac"}, "data": {"dataset": "digits"}}))
    assert space == {
        "training.lr": Range(0.001, 0.1, log=True),
        "method.head_lr": Range(0.01, 1.0, log=True),
        "method.lam": Range(0.1, 10.0, log=True),
    }
    share = default_space(make_config({"method": {"name": "apfl"}}))["method.alpha"]
    assert (share.low, share.high) == (0.025, 1.0)  # never more than is allowed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("training.lr=0.001:0.3", ("training.lr", Range(0.001, 0.3, log=True))),
        ("training.epochs=1:5", ("training.epochs", Range(1, 5, whole=True))),
        ("training.optimizer=sgd,adam", ("training.optimizer", Choice(("sgd", "adam")))),
        ("method.alignment=true,false", ("method.alignment", Choice((True, False)))),
    ],
)
def test_what_to_vary(text, found):
    assert parsed(text) == found


@pytest.mark.parametrize(
    "text", ["training.lr", "training.lr=", "training.lr=3:1", "training.lr=a:b", "training.rate=1:2"]
)
def test_what_cannot_be_varied(text, tmp_path):
    with pytest.raises(ConfigError):
        tune(VALUES, tmp_path / "t", 1, [text])


def test_on_the_command_line(fedpac):
    how = ["--dataset", "digits", "--model", "logistic", "--rounds", 1, "--trials", 2, "--set", "data.clients=2"]
    code, out, err = fedpac("tune", "--methods", "fedavg,local", *how, "--set", "run.engine=serial", "--out", "tuning")
    assert code == 0, err
    assert "Each method: 2 trials of 1 rounds, seed 0, chosen by validation accuracy" in out.replace("\n", " ")
    code, _, err = fedpac("tune", "--methods", "fedavgg", *how)
    assert code == 1
    assert "Did you mean 'fedavg'" in err
