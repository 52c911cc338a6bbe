"""A run's folder: plain files that anything else (tables, figures, a spreadsheet) can read.

config.toml        what was run, complete                 metrics.csv   round,client,split,accuracy (or r2),loss
clients.csv        what every client holds                weights.csv   round,client,peer,weight
environment.json   machine, versions, commands            rounds.csv    seconds and bytes of every round
summary.json       the result, when the run is finished   checkpoint.safetensors   to continue from
failures.csv       who did not answer and why, if anybody    preprocessing.json   what was made of tables' rows
scores.csv         other metrics and validation, if asked for
selected.safetensors   as the checkpoint, of the round that validation data chose
"""

import csv
import fcntl
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from fedpac.config import Config, make_config
from fedpac.config_values import read_config
from fedpac.errors import RunError, RunInUseError
from fedpac.files import explained, write_atomically
from fedpac.methods import is_own
from fedpac.metrics import SEPARATOR
from fedpac.rounds import RoundReport

METRICS = ("round", "client", "split", "accuracy", "loss")
OF_NUMBERS = ("round", "client", "split", "r2", "loss")  # the same table where a number is predicted
WEIGHTS = ("round", "client", "peer", "weight")
ROUNDS = ("round", "participants", "seconds", "client_seconds", "bytes_down", "bytes_up")
CLIENTS = ("client", "name", "group", "train", "test")  # and class_0, class_1, ...: training samples of each class
FAILURES = ("round", "client", "cause", "reason")  # a table that is there only if a client has failed
SCORES = ("round", "client", "split", "part", "metric", "value")  # a table that is there only if it was asked for
TABLES = {"metrics.csv": METRICS, "weights.csv": WEIGHTS, "rounds.csv": ROUNDS}
OPTIONAL = {"failures.csv": FAILURES, "scores.csv": SCORES}

CHECKPOINT = "checkpoint.safetensors"
SELECTED = "selected.safetensors"
LOCK = ".lock"
DATA_DIR = ".data-dir"  # where the data were; a file of its own, since it holds for this machine only

CsvRow: TypeAlias = Sequence[object]


def once_more(folder: Path) -> str:
    """What to do about a run that cannot go on."""
    return f"start over with 'fedpac run {folder / 'config.toml'} --out' and a new folder"


class RunStore:
    """One run's folder. Whoever writes to it does so inside `locked()`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path) -> "RunStore":
        store = cls(path)
        if not store.begun:
            raise RunError(f"{path} is not a run folder: it has no config.toml")
        return store

    def config(self, method: str | None = None, trust: bool = False, model: str | None = None) -> Config:
        """What the folder says was run. A method or a network of somebody's own is code that the folder may have
        brought along: it is imported only if the caller names it, too, or trusts the folder."""
        values = read_config(self.path / "config.toml")
        given = values.get("method")
        names = {"method": given.get("name") if isinstance(given, dict) else given, "model": values.get("model")}
        for what, asked in (("method", method), ("model", model)):
            name = names[what]
            if asked is not None and asked != name:
                raise RunError(f"{self.path} was run with the {what} '{name}', not '{asked}'")
            if is_own(name) and asked is None and not trust:
                raise RunError(
                    f"{self.path} was run with '{name}', which is not part of fedpac. Importing it runs its code: if "
                    f"you trust it, pass --{what} {name} (in Python, {what}='{name}'), or --trust "
                    "(trust=True)"
                )
        return make_config(values)

    @contextmanager
    def locked(self, create: bool = False) -> Iterator[None]:
        """Keeps a second writer out. The lock is this process's own and dies with it: forked workers do not hold it.

        With `create`, the folder is made if there is none, and removed again if no run was put into it.
        """
        with self._explained():
            made = [folder for folder in (self.path, *self.path.parents) if create and not folder.exists()]
            if create:
                self.path.mkdir(parents=True, exist_ok=True, mode=0o700)  # states of clients are in it
            file = (self.path / LOCK).open("a")
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunInUseError(f"another process is writing to the run in {self.path}") from None
            try:
                for leftover in self.path.glob(".*.tmp"):  # of a process that was killed while it wrote
                    with suppress(OSError):  # it may stay where it cannot be removed
                        leftover.unlink()
                yield
            finally:
                if made and not self.begun:
                    with suppress(OSError):
                        (self.path / LOCK).unlink()
                        for folder in made:
                            folder.rmdir()

    def create(
        self, config_toml: str, clients: Iterable[CsvRow], classes: int, metrics: Sequence[str] = METRICS
    ) -> None:
        """Put a new run into the folder. config.toml comes last: a folder without it holds no run."""
        self.check_free()
        try:
            self.write_clients(clients, classes)
            with self._explained():
                for name, header in {**TABLES, "metrics.csv": metrics}.items():
                    write_atomically(self.path / name, csv_lines([header]).encode())
                write_atomically(self.path / "config.toml", config_toml.encode())
        except RunError:
            for name in ("clients.csv", *TABLES):
                with suppress(OSError):  # a later start writes over it
                    (self.path / name).unlink()
            raise

    def write_clients(self, clients: Iterable[CsvRow], classes: int) -> None:
        columns = (*CLIENTS, *(f"class_{k}" for k in range(classes)))
        with self._explained():
            write_atomically(self.path / "clients.csv", csv_lines([columns, *clients]).encode())

    def reopen(self, config_toml: str) -> None:
        """A finished run goes on with another config. Cut off in between, it is as unfinished as it was before."""
        with self._explained():
            (self.path / "summary.json").unlink(missing_ok=True)
            write_atomically(self.path / "config.toml", config_toml.encode())

    def check_free(self) -> None:
        """A run goes into a folder of its own."""
        if self.begun:
            raise RunError(
                f"{self.path} already holds a run: continue it with 'fedpac resume {self.path}' or choose another"
            )
        ours = {LOCK, ".federation", "clients.csv", *TABLES}  # left by a start that was interrupted
        with self._explained():
            names = {path.name for path in self.path.iterdir()} - {path.name for path in self.path.glob(".*.tmp")}
            if names - ours:
                raise RunError(f"{self.path} is not empty: choose a new folder for the run")

    def _explained(self) -> AbstractContextManager[None]:
        again = f"continue with 'fedpac resume {self.path}'" if self.begun else "start the run again"
        return explained(self.path, again)

    @property
    def begun(self) -> bool:
        return (self.path / "config.toml").is_file()

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def append(self, report: RoundReport, sync: bool = False) -> None:
        """One round's rows, each table in one write. With `sync` they are on the disk when this returns."""
        t = report.round
        rows: dict[str, Iterable[CsvRow]] = {
            "metrics.csv": [(t, s.client, s.which, repr(s.accuracy), repr(s.loss)) for s in report.scores],
            "weights.csv": [(t, i, j, repr(weight)) for i, j, weight in report.peer_weights if report.scores or t == 1],
            "rounds.csv": [
                (t, len(report.chosen), f"{report.seconds:.4f}", f"{report.client_seconds:.4f}",
                 report.bytes_down, report.bytes_up)
            ],
        }  # fmt: skip
        sometimes: dict[str, list[CsvRow]] = {
            "failures.csv": [(t, f.client, f.cause, " ".join(f.reason.split())) for f in report.failed],
            "scores.csv": [
                (t, s.client, s.which, *name.split(SEPARATOR, 1), repr(value))
                for s in report.scores
                for name, value in s.measured.items()
            ],
        }
        for name, found in sometimes.items():
            if found:
                rows[name] = found if (self.path / name).exists() else [OPTIONAL[name], *found]
        with self._explained():
            for name, lines in rows.items():
                with (self.path / name).open("a", newline="") as file:
                    file.write(csv_lines(lines))
                    if sync:
                        file.flush()
                        os.fsync(file.fileno())

    def sync(self) -> None:
        """What was appended is on the disk when this returns."""
        with self._explained():
            for path in self.path.glob("*.csv"):
                with path.open("a") as file:
                    os.fsync(file.fileno())

    def truncate(self, round: int, results: Mapping[int, int]) -> None:
        """Forget every row of later rounds, and a last line that was cut off in the middle.

        The rounds up to this one must be there, and at least so many results of each; else nothing is changed.
        """
        kept: dict[str, dict[int, list[str]]] = {}  # table -> round -> lines
        with self._explained():
            for name in (*TABLES, *OPTIONAL):
                lines = kept.setdefault(name, {})
                for line in _complete_lines(self.path / name):
                    if (t := int(line.split(",", 1)[0])) <= round:
                        lines.setdefault(t, []).append(line)
        found = {t: len(lines) for t, lines in kept["metrics.csv"].items()}
        whole = {
            "rounds.csv": [*kept["rounds.csv"]] == list(range(1, round + 1)),
            "metrics.csv": all(found.get(t, 0) >= count for t, count in results.items()),
        }
        if cut := [name for name, complete in whole.items() if not complete]:
            raise RunError(
                f"{self.path}: the checkpoint is of round {round}, but {cut[0]} does not hold all rounds up to it; "
                f"restore the file, or {once_more(self.path)}"
            )
        present = TABLES | {name: columns for name, columns in OPTIONAL.items() if (self.path / name).exists()}
        if (self.path / "metrics.csv").read_bytes().startswith(csv_lines([OF_NUMBERS]).encode()):
            present["metrics.csv"] = OF_NUMBERS
        for name, columns in present.items():
            text = "".join([csv_lines([columns]), *(line for lines in kept[name].values() for line in lines)])
            with self._explained():
                write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        self.write_text(name, json.dumps(values, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        with self._explained():
            write_atomically(self.path / name, text.encode())

    def read_json(self, name: str) -> dict[str, Any]:
        try:
            values: dict[str, Any] = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            raise RunError(f"{self.path} has no {name}: finish the run with 'fedpac resume {self.path}'") from None
        except (OSError, RecursionError, ValueError) as error:
            raise RunError(f"{self.path / name} is damaged: {error}") from None
        if not isinstance(values, dict):
            raise RunError(f"{self.path / name} is damaged: it holds no named values")
        return values

    def remember_data_dir(self, folder: Path) -> None:
        with self._explained():
            write_atomically(self.path / DATA_DIR, os.fsencode(folder) + b"\n")  # names of files are bytes

    def data_dir(self) -> Path | None:
        path = self.path / DATA_DIR
        if not path.is_file():
            return None
        with self._explained():
            name = path.read_bytes().removesuffix(b"\n")
        if not name or b"\0" in name:
            raise RunError(f"{path} does not name a folder: give the data folder with --data-dir")
        return Path(os.fsdecode(name))

    def rows(self, table: str) -> list[dict[str, str]]:
        path = self.path / table
        expected = (TABLES | OPTIONAL).get(table, CLIENTS)
        try:
            text = path.read_text()
            lines = csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))  # without a line that was cut off
            columns = next(lines, [])
            rows = [dict(zip(columns, line, strict=False)) for line in lines if line]
        except FileNotFoundError:
            raise RunError(f"{path} is missing") from None
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise RunError(f"{path} cannot be read: {error}") from None
        if table == "metrics.csv" and tuple(columns) == OF_NUMBERS:
            expected = OF_NUMBERS
        if tuple(columns[: len(expected)]) != expected:
            raise RunError(f"{path} has the columns {','.join(columns)}; expected {','.join(expected)}")
        return rows


def csv_lines(rows: Iterable[CsvRow]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _complete_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    lines = path.read_bytes().decode(errors="replace").splitlines(keepends=True)
    return [line for line in lines[1:] if line.endswith("\n") and line.split(",", 1)[0].isdigit()]
