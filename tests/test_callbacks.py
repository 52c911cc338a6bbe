"""Callbacks see every round, may stop the training, and can never lose what was trained."""

import csv
import json

import numpy as np
import pytest
import torch
from torch import nn

import fedpac
from fedpac.callbacks import Beginning, Callback
from fedpac.errors import ConfigError, RunError
from fedpac.runs.execute import advance, resume, run
from fedpac.tracking import tracker
from small_run import exact, small


def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(3, 60, 4)).astype(np.float32)
    y = (x[..., 0] + random.normal(size=(3, 60)) > 0).astype(np.int64)
    return [(x[i, :40], y[i, :40], x[i, 40:], y[i, 40:]) for i in range(3)]


def fit(callbacks, rounds=6, **more):
    torch.manual_seed(0)
    model = fedpac.Classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 2))
    return fedpac.fit(model, data(), rounds=rounds, callbacks=callbacks, engine="serial", epochs=1, **more)


class Diary(Callback):
    def __init__(self):
        self.lines = []

    def begin(self, beginning: Beginning):
        self.lines.append((beginning.method, beginning.reported, beginning.clients, beginning.after_round))

    def see(self, report):
        self.lines.append(report.round)

    def end(self):
        self.lines.append("end")


def broken(report):
    if report.round == 3:
        raise ZeroDivisionError("a mistake of mine")


def test_callbacks_see_all_rounds_and_change_nothing():
    diary = Diary()
    result = fit([diary, lambda report: None])
    assert diary.lines == [("FedPAC", "received", 3, 0), 1, 2, 3, 4, 5, 6, "end"]
    assert result.stopped is None
    assert result.accuracy == fit([]).accuracy


def test_stopping_keeps_the_result():
    diary = Diary()
    result = fit([lambda report: report.round == 4, diary])
    assert (result.server.round, len(result.history)) == (4, 4)
    assert str(result.stopped) == "stopped after round 4 by <lambda>"
    assert diary.lines[-2:] == [4, "end"]  # it sees the round in which another one stopped
    assert result.accuracy == fit([], rounds=4).accuracy


def test_raising_keeps_the_result():
    diary = Diary()
    with pytest.warns(
        UserWarning, match=r"stopped after round 3: broken failed \(ZeroDivisionError: a mistake of mine"
    ):
        result = fit([broken, diary])
    assert result.server.round == 3
    assert isinstance(result.stopped.error, ZeroDivisionError)
    assert diary.lines[-2:] == [3, "end"]
    assert result.accuracy == fit([], rounds=3).accuracy


def test_early_stopping_by_validation_data():
    stopping = fedpac.EarlyStopping("loss", patience=2)
    result = fit([stopping], rounds=200, validation_share=0.3, lr=0.5)
    seen = stopping.selection.seen
    assert result.server.round == len(result.history) == max(seen) < 200
    assert stopping.selection.best == result.server.round - 2
    with pytest.warns(UserWarning, match="'validation/loss' is not measured; set validation_share"):
        assert fit([fedpac.EarlyStopping("loss")]).server.round == 1


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([3], "callbacks has a int"), ([Diary], "callbacks has the class Diary"), (Diary(), "expected a list"),
    ],
)  # fmt: skip
def test_what_is_no_callback(callbacks, message):
    with pytest.raises(ConfigError, match=message):
        fit(callbacks)


def test_settings_of_early_stopping_are_checked():
    with pytest.raises(ConfigError, match="Did you mean 'accuracy'"):
        fedpac.EarlyStopping("acuracy")
    with pytest.raises(ConfigError, match="expected 1 or more"):
        fedpac.EarlyStopping(patience=0)


# --- runs ---------------------------------------------------------------------------------------------------------


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path):
    run(small(), tmp_path / "whole")
    diary = Diary()
    summary = run(small(), tmp_path / "run", callbacks=[diary, lambda report: report.round == 4])
    assert summary["stopped"] == "stopped after round 4 by <lambda>"
    assert summary["rounds"] == 4
    assert not (tmp_path / "run" / "summary.json").exists()
    resume(tmp_path / "run", callbacks=[diary])
    assert exact(tmp_path / "run") == exact(tmp_path / "whole")
    assert diary.lines == [
        ("FedPAC", "received", 4, 0), 1, 2, 3, 4, "end", ("FedPAC", "received", 4, 4), 5, 6, 7, 8, "end",
    ]  # fmt: skip


def test_a_run_whose_callback_fails_goes_on_too(tmp_path):
    run(small(), tmp_path / "whole")
    with pytest.raises(RunError, match=r"broken failed .*; nothing is lost: continue with 'fedpac resume"):
        run(small(), tmp_path / "run", callbacks=[broken])
    resume(tmp_path / "run")
    assert exact(tmp_path / "run") == exact(tmp_path / "whole")
    with pytest.raises(RunError, match="the run is finished"):
        run(small(rounds=3), tmp_path / "last", callbacks=[broken])
    assert (tmp_path / "last" / "summary.json").exists()


def test_a_callback_sees_a_round_when_it_is_on_the_disk(tmp_path):
    seen = []

    def look(report):
        seen.append(len((tmp_path / "run" / "rounds.csv").read_text().splitlines()) - 1 == report.round)

    advance(small(rounds=3), tmp_path / "run", callbacks=[look])
    assert seen == [True] * 3


# --- trackers -----------------------------------------------------------------------------------------------------


def means(result):
    return [np.mean(report.accuracies("received")) for report in result.history]


def test_logs_hold_every_round(tmp_path):
    result = fit([fedpac.Log(tmp_path / "deep" / "a.jsonl"), fedpac.Log(tmp_path / "b.csv")], metrics=["auroc"])
    lines = [json.loads(line) for line in (tmp_path / "deep" / "a.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["received/test/accuracy"] for line in lines] == pytest.approx(means(result))
    assert all(0 <= line["personal/test/auroc"] <= 1 for line in lines)
    rows = list(csv.DictReader((tmp_path / "b.csv").open()))
    found = [float(r["value"]) for r in rows if r["metric"] == "received/test/accuracy"]
    assert found == pytest.approx(means(result))
    fit([fedpac.Log(tmp_path / "b.csv")], rounds=1)
    assert (tmp_path / "b.csv").read_text().count("round,metric,value") == 1  # continued
    with pytest.raises(ConfigError, match=r"a log must be a .jsonl or .csv file"):
        fedpac.Log("rounds.txt")


def test_tensorboard_shows_the_rounds(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = fit([fedpac.TensorBoard(tmp_path / "logs")])
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    scalars = events.Scalars("received/test/accuracy")
    assert [event.step for event in scalars] == [1, 2, 3, 4, 5, 6]
    assert [event.value for event in scalars] == pytest.approx(means(result))


def test_mlflow_holds_the_rounds(tmp_path):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    callback = fedpac.MLflow(uri, experiment="clinics")
    result = fit([callback])
    client = MlflowClient(tracking_uri=uri)
    history = client.get_metric_history(callback.run, "received/test/accuracy")
    assert [m.step for m in history] == [1, 2, 3, 4, 5, 6]
    assert [m.value for m in history] == pytest.approx(means(result))
    made = client.get_run(callback.run)
    assert (made.info.status, made.data.params["method"], made.data.params["lr"]) == ("FINISHED", "FedPAC", "0.01")


def test_tracking_on_the_command_line(fedpac, tmp_path):
    run = ["run", "--dataset", "digits", "--clients", 3, "--rounds", 2, "--set", "model=logistic", "--no-figures"]
    run += ["--set", "data.samples=10", "--set", "data.test_samples=10", "--engine", "serial"]
    assert fedpac(*run, "--out", "r", "--track", "rounds.jsonl", "--track", "tensorboard:logs")[0] == 0
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 2
    assert list((tmp_path / "logs").iterdir())
    code, _, complaint = fedpac(*run, "--out", "q", "--track", "wandb:me")
    assert (code, "expected a file .jsonl or .csv, tensorboard:FOLDER" in complaint) == (1, True)
    assert not (tmp_path / "q").exists()


def test_a_resumed_run_goes_on_in_the_same_log(fedpac, tmp_path):
    how = ("run", "--dataset", "digits", "--clients", 2, "--rounds", 2, "--model", "logistic", "--engine", "serial")
    assert fedpac(*how, "--no-figures", "--out", "r", "--track", "rounds.jsonl")[0] == 0
    assert fedpac("resume", "r", "--rounds", 4, "--no-figures", "--track", "rounds.jsonl")[0] == 0
    lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]


def test_trackers_by_name():
    assert type(tracker("tensorboard:x")).__name__ == "TensorBoard"
    assert tracker("mlflow:sqlite:///x.db").uri == "sqlite:///x.db"
