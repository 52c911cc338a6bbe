"""The round that validation data choose, and the end that they bring."""

import csv
import json
import shutil

import numpy as np
import pytest
from torch import nn

import fedpac
from fedpac.config import make_config
from fedpac.errors import ConfigError, FedpacError
from fedpac.report.comparison import client_rows, compare, exact_rows, metric_rows, notes, win_rate
from fedpac.runs.execute import advance, resume, run
from fedpac.runs.read import read_run
from fedpac.selection import Selection
from small_run import exact

METRICS = ["auroc", "ece", "confusion", "reliability"]


def config(method="fedpac", **changes):
    values = {
        "method": method,
        "model": "logistic",
        "data": {"dataset": "digits", "clients": 4, "samples": 25, "test_samples": 15, "validation_share": 0.3},
        "training": {"epochs": 1},
        "run": {"rounds": 8, "evaluate_every": 1, "engine": "serial", "checkpoint_every": 3, "metrics": METRICS},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        values[section][name] = value
    return make_config(values)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("selection")
    for method in ("fedpac", "local"):
        run(config(method), root / method)
    return root


def rows(folder):
    with (folder / "scores.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_best_round_goes_by_the_direction_of_the_metric():
    rising, falling = Selection("accuracy"), Selection("loss")
    for t, value in enumerate([0.5, 0.7, 0.7, 0.6], start=1):
        rising.see(t, {0: value - 0.1, 1: value + 0.1})
        falling.see(t, {0: value})
    assert (rising.best, falling.best) == (2, 1)  # the earlier of equal ones


def test_patience_counts_evaluations_after_the_best():
    selection = Selection("accuracy", patience=2)
    seen = []
    for t, value in enumerate([0.1, 0.3, 0.2, 0.4, 0.3, 0.2], start=1):
        selection.see(5 * t, {0: value})
        seen.append(selection.exhausted)
    assert seen == [False, False, False, False, False, True]


def test_the_summary_states_final_selected_and_best(folders):
    summary = json.loads((folders / "fedpac" / "summary.json").read_text())
    found = {}
    for row in rows(folders / "fedpac"):
        if (row["split"], row["part"], row["metric"]) == ("received", "validation", "accuracy"):
            found.setdefault(int(row["round"]), []).append(float(row["value"]))
    chosen = max(found, key=lambda t: (np.mean(found[t]), -t))
    assert len(found) == 8
    assert summary["received"]["selected"]["round"] == chosen
    assert summary["received"]["selected"]["by"] == "validation/accuracy"
    assert summary["received"]["best"]["mean"] >= summary["received"]["selected"]["mean"]
    data = read_run(folders / "fedpac")
    assert summary["received"]["selected"]["mean"] == data.means["received"][chosen]
    auroc = summary["scores"]["received"]["selected"]["test"]["auroc"]
    each = [
        float(row["value"])
        for row in rows(folders / "fedpac")
        if (row["round"], row["split"], row["part"], row["metric"]) == (str(chosen), "received", "test", "auroc")
    ]
    assert len(each) == 4
    assert auroc["mean"] == pytest.approx(np.mean(each))
    assert auroc["worst_decile"] == min(each)
    ece = summary["scores"]["received"]["final"]["test"]["ece"]
    assert ece["worst_decile"] >= ece["mean"]  # of what should be small, the worst is the largest
    assert np.sum(summary["scores"]["received"]["final"]["test"]["confusion"]) == 4 * 15
    bins = summary["scores"]["received"]["final"]["test"]["reliability"]
    assert sum(each["samples"] for each in bins) == 4 * 15
    right = sum(each["samples"] * each["accuracy"] for each in bins)
    assert right == pytest.approx(4 * 15 * summary["received"]["final"]["mean"])  # equal sites: the mean over samples


def test_without_validation_nothing_is_different(tmp_path):
    """Neither a file nor a key more than before."""
    run(config(data__validation_share=None, run__metrics=[]), tmp_path / "plain")
    names = {path.name for path in (tmp_path / "plain").iterdir()}
    assert not names & {"scores.csv", "selected.safetensors"}
    summary = json.loads((tmp_path / "plain" / "summary.json").read_text())
    assert not summary.keys() & {"scores", "stopped_early"}
    assert summary["received"].keys() == {"final", "best"}
    identity = config(data__validation_share=None, run__metrics=[]).identity()
    assert "validation_share" not in identity["data"]
    assert not identity["run"].keys() & {"metrics", "select_by", "patience"}


def test_early_stopping_survives_an_interruption(tmp_path):
    patient = config("local", run__patience=2, run__rounds=30)
    run(patient, tmp_path / "whole")
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert summary["stopped_early"]
    assert 3 <= summary["rounds"] < 30
    assert read_run(tmp_path / "whole").finished
    chosen = summary["personal"]["selected"]["round"]
    assert summary["rounds"] == chosen + 2

    def halfway(report):
        return report.round == chosen + 1

    advance(patient, tmp_path / "halved", callbacks=[halfway])
    assert not (tmp_path / "halved" / "summary.json").exists()
    resume(tmp_path / "halved")
    assert exact(tmp_path / "halved") == exact(tmp_path / "whole")
    for name in ("scores.csv", "selected.safetensors"):
        assert (tmp_path / "halved" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_rows_after_the_checkpoint_are_forgotten(tmp_path):
    advance(config(), tmp_path / "run", callbacks=[lambda report: report.round == 4])
    before = (tmp_path / "run" / "scores.csv").read_bytes()
    with (tmp_path / "run" / "scores.csv").open("a") as file:
        file.write("5,0,received,test,auroc,0.5\n5,1,rec")
    advance(config(), tmp_path / "run", callbacks=[lambda report: report.round == 5])
    after = (tmp_path / "run" / "scores.csv").read_bytes()
    assert after.startswith(before)
    assert b"5,0,received,test,auroc,0.5\n" not in after


def test_the_selected_round_can_be_loaded(folders):
    last, chosen = fedpac.load_run(folders / "local"), fedpac.load_run(folders / "local", selected=True)
    summary = json.loads((folders / "local" / "summary.json").read_text())
    assert chosen.server.round == summary["personal"]["selected"]["round"]
    assert last.server.round == 8


def test_a_run_without_validation_has_no_selected_round(tmp_path):
    run(config(data__validation_share=None), tmp_path / "plain")
    with pytest.raises(FedpacError, match="without validation data"):
        fedpac.load_run(tmp_path / "plain", selected=True)


def test_the_comparison_says_who_is_better_off(folders):
    runs = [read_run(folders / name) for name in ("fedpac", "local")]
    mine, theirs = (one.accuracy[one.reported][one.evaluated_round(one.reported, "selected")] for one in runs)
    expected = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in zip(mine, theirs, strict=True)])
    assert win_rate(runs[0], runs[1:]) == expected
    assert win_rate(runs[1], runs[1:]) is None
    table = compare(runs)
    assert table[0]["wins"] == f"{100 * expected:.0f}"
    assert table[0]["received_selected"]
    assert any("Beats Local-only" in note for note in notes(runs))
    measured = metric_rows(runs)
    assert {row["metric"] for row in measured} == {"auroc", "ece"}
    each, columns = client_rows(runs)
    assert len(each) == 8
    assert {"client", "accuracy", "auroc", "ece"} <= columns.keys()
    exactly, _ = exact_rows(runs)
    assert float(exactly[0]["beats_local"]) == expected
    assert exactly[1]["beats_local"] == ""


def test_other_data_are_not_compared(folders, tmp_path):
    run(config("local", data__samples=20), tmp_path / "other")
    assert win_rate(read_run(folders / "fedpac"), [read_run(tmp_path / "other")]) is None


def test_damaged_scores_are_refused(folders, tmp_path):
    shutil.copytree(folders / "fedpac", tmp_path / "run")
    with (tmp_path / "run" / "scores.csv").open("a") as file:
        file.write("8,77,received,test,auroc,0.5\n")
    with pytest.raises(FedpacError, match="there is no client 77"):
        _ = read_run(tmp_path / "run").scores


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run__patience": 3, "data__validation_share": None}, "run.patience needs validation data"),
        ({"run__select_by": "brier"}, "run.select_by = 'brier' is not measured"),
        ({"run__select_by": "auroq"}, "there is no metric 'auroq'"),
        ({"run__metrics": ["auroq"]}, "there is no metric 'auroq'"),
        ({"data__validation_share": 1.0}, "less than 1"),
    ],
)
def test_what_cannot_be_chosen_by(changes, message):
    with pytest.raises(ConfigError, match=message):
        config(**changes)


def test_fit_keeps_the_selected_federation():
    generator = np.random.default_rng(0)
    means = 3 * generator.normal(size=(2, 5))
    clients = []
    for _ in range(3):
        y = generator.integers(0, 2, 60)
        x = (means[y] + generator.normal(size=(60, 5))).astype("float32")
        clients.append((x[:40], y[:40], x[40:], y[40:]))
    model = fedpac.Classifier(nn.Linear(5, 4), nn.Linear(4, 2))
    result = fedpac.fit(
        model, clients, "local", rounds=6, validation_share=0.25, patience=2, select_by="loss", metrics=["auroc"],
        lr=0.1, engine="serial",
    )  # fmt: skip
    losses = [np.mean(list(report.measured("personal", "validation/loss").values())) for report in result.history]
    assert result.selected.server.round == 1 + int(np.argmin(losses))
    report = result.history[result.selected.server.round - 1]
    chosen = result.selected.model(0, "received")
    assert isinstance(chosen.predict(clients[0][2]), np.ndarray)
    assert report.measured("personal", "test/auroc").keys() == {0, 1, 2}
    with pytest.raises(FedpacError, match="no validation data"):
        _ = fedpac.fit(model, clients, "local", rounds=1, engine="serial").selected
