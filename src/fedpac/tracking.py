"""Callbacks that write rounds down: as CSV or JSON lines, for TensorBoard, in MLflow."""

import csv
import io
import json
import time
from pathlib import Path
from typing import Any

from fedpac.callbacks import Beginning, Callback
from fedpac.errors import ConfigError
from fedpac.extras import library
from fedpac.files import explained
from fedpac.rounds import RoundReport

EXTRA = "tracking"
COLUMNS = ("round", "metric", "value")


def numbers(report: RoundReport) -> dict[str, float]:
    """What trackers show of a round: means over clients, bytes and seconds."""
    found: dict[str, list[float]] = {}
    for score in report.scores:
        values = {f"test/{report.metric}": score.accuracy, "test/loss": score.loss, **score.measured}
        for name, value in values.items():
            found.setdefault(f"{score.which}/{name}", []).append(value)
    means = {name: sum(values) / len(values) for name, values in found.items()}
    return {
        **means,
        "round/seconds": report.seconds,
        "round/participants": float(len(report.chosen)),
        "round/failed": float(len(report.failed)),
        "round/bytes_up": float(report.bytes_up),
        "round/bytes_down": float(report.bytes_down),
    }


class Log(Callback):
    """Every round as a line of JSON (.jsonl), or as lines round,metric,value (.csv). An existing file is continued."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if self.path.suffix not in (".jsonl", ".csv"):
            raise ConfigError(f"a log must be a .jsonl or .csv file, not {self.path}")

    def begin(self, beginning: Beginning) -> None:
        with explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = not self.path.exists() or not self.path.stat().st_size
            if new and self.path.suffix == ".csv":
                self._append(_csv([COLUMNS]))

    def see(self, report: RoundReport) -> None:
        found = numbers(report)
        with explained(self.path):
            if self.path.suffix == ".csv":
                self._append(_csv([(report.round, name, repr(value)) for name, value in found.items()]))
            else:
                self._append(json.dumps({"round": report.round, **found}) + "\n")

    def _append(self, text: str) -> None:
        with self.path.open("a", newline="") as file:
            file.write(text)


def _csv(rows: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class TensorBoard(Callback):
    """Rounds as scalars: tensorboard --logdir FOLDER."""

    def __init__(self, folder: Path | str) -> None:
        library("tensorboard", EXTRA)
        self.folder = Path(folder)
        self.writer: Any = None

    def begin(self, beginning: Beginning) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with explained(self.folder):
            self.writer = SummaryWriter(str(self.folder), purge_step=beginning.after_round + 1)
        settings = {"method": beginning.method, **beginning.settings}
        self.writer.add_text("settings", "\n".join(f"    {name} = {value}" for name, value in settings.items()), 0)

    def see(self, report: RoundReport) -> None:
        for name, value in numbers(report).items():
            self.writer.add_scalar(name, value, report.round)

    def end(self) -> None:
        if self.writer is not None:
            self.writer.close()


class MLflow(Callback):
    """Rounds as metrics of one MLflow run.

    uri          where: 'sqlite:///mlflow.db', or a server's address
    experiment   under which name
    """

    def __init__(self, uri: str = "sqlite:///mlflow.db", experiment: str = "fedpac", name: str | None = None) -> None:
        library("mlflow", EXTRA)
        self.uri, self.experiment, self.name = uri, experiment, name
        self.client: Any = None
        self.run = ""

    def begin(self, beginning: Beginning) -> None:
        self.client = library("mlflow", EXTRA).MlflowClient(tracking_uri=self.uri)
        entities = library("mlflow.entities", EXTRA)
        known = self.client.get_experiment_by_name(self.experiment)
        place = known.experiment_id if known is not None else self.client.create_experiment(self.experiment)
        made = self.client.create_run(place, run_name=self.name or beginning.method)
        self.run = made.info.run_id
        settings = {"method": beginning.method, "clients": beginning.clients, **beginning.settings}
        params = [entities.Param(name, str(value)[:500]) for name, value in settings.items()]
        self.client.log_batch(self.run, params=params[:100])

    def see(self, report: RoundReport) -> None:
        now, entities = int(1000 * time.time()), library("mlflow.entities", EXTRA)
        found = [entities.Metric(name, value, now, report.round) for name, value in numbers(report).items()]
        self.client.log_batch(self.run, metrics=found)

    def end(self) -> None:
        if self.run:
            self.client.set_terminated(self.run)


def tracker(target: str) -> Callback:
    """From the command line: 'rounds.jsonl', 'rounds.csv', 'tensorboard:FOLDER', 'mlflow:URI'."""
    kind, _, place = target.partition(":")
    if kind in ("tensorboard", "mlflow") and place:
        return TensorBoard(place) if kind == "tensorboard" else MLflow(place)
    if target.endswith((".jsonl", ".csv")):
        return Log(target)
    raise ConfigError(
        f"--track {target}: expected a file .jsonl or .csv, tensorboard:FOLDER, or mlflow:URI such as "
        "mlflow:sqlite:///mlflow.db"
    )
