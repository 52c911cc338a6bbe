"""A run's folder: plain files that anything else (tables, figures, a spreadsheet) can read.

config.toml    what was run, complete                     metrics.csv   round,client,split,accuracy,loss
summary.json   the result, when the run is finished       weights.csv   round,client,peer,weight
rounds.csv     seconds and bytes of every round           checkpoint.safetensors   to continue from
"""

import csv
import errno
import fcntl
import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpac.errors import RunError
from fedpac.federation import RoundReport

METRICS = ("round", "client", "split", "accuracy", "loss")
WEIGHTS = ("round", "client", "peer", "weight")
ROUNDS = ("round", "participants", "seconds", "client_seconds", "bytes_down", "bytes_up")
TABLES = {"metrics.csv": METRICS, "weights.csv": WEIGHTS, "rounds.csv": ROUNDS}

CHECKPOINT = "checkpoint.safetensors"


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what the operating system says of a folder into what the user can do about it."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "the disk is full: free some space, then continue with 'fedpac resume'",
            errno.EROFS: "the file system is read-only: choose another folder",
            errno.EACCES: "writing there is not allowed: choose another folder or change its permissions",
            errno.ENOTDIR: "a part of that path is a file, not a folder",
        }.get(error.errno or 0, error.strerror or str(error))
        raise RunError(f"{path}: {advice}") from None


def write_atomically(path: Path, data: bytes) -> None:
    """The file holds either all of the old or all of the new bytes, whenever the power goes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class RunStore:
    """Writes one run's folder. Holding it open locks the folder against a second writer."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config_toml: str) -> "RunStore":
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
            if (path / "config.toml").exists():
                raise RunError(f"{path} already holds a run: continue it with 'fedpac resume {path}' or choose another")
            if any(path.iterdir()):
                raise RunError(f"{path} is not empty: choose a new folder for the run")
            store = cls(path)
            store.truncate(0)
            write_atomically(path / "config.toml", config_toml.encode())
            return store

    @classmethod
    def open(cls, path: Path) -> "RunStore":
        if not (path / "config.toml").is_file():
            raise RunError(f"{path} holds no run: there is no config.toml in it")
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with explained(self.path), (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"another process is writing the run in {self.path}") from None
            try:
                yield
            finally:
                (self.path / ".lock").unlink(missing_ok=True)

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def append(self, report: RoundReport) -> None:
        """One round's rows, each table in one write."""
        t = report.round
        rows: dict[str, Iterable[tuple[object, ...]]] = {
            "metrics.csv": [(t, s.client, s.which, repr(s.accuracy), repr(s.loss)) for s in report.scores],
            "weights.csv": [(t, i, j, repr(weight)) for i, j, weight in report.peer_weights],
            "rounds.csv": [
                (t, len(report.chosen), f"{report.seconds:.4f}", f"{report.client_seconds:.4f}",
                 report.bytes_down, report.bytes_up)
            ],
        }  # fmt: skip
        with explained(self.path):
            for name, lines in rows.items():
                with (self.path / name).open("a", newline="") as file:
                    file.write(_csv(lines))

    def truncate(self, round: int) -> None:
        """Forget every row of later rounds, and a last line that was cut off in the middle."""
        with explained(self.path):
            for name, columns in TABLES.items():
                path = self.path / name
                kept = [line for line in _complete_lines(path) if int(line.split(",", 1)[0]) <= round]
                write_atomically(path, "".join([_csv([columns]), *kept]).encode())

    def write_summary(self, summary: dict[str, Any]) -> None:
        with explained(self.path):
            write_atomically(self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())

    def read_summary(self) -> dict[str, Any]:
        try:
            summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        except FileNotFoundError:
            raise RunError(f"{self.path} has no summary.json: finish the run with 'fedpac resume {self.path}'") from None
        except ValueError as error:
            raise RunError(f"{self.path / 'summary.json'} is damaged: {error}") from None
        return summary

    def rows(self, table: str) -> list[dict[str, str]]:
        path = self.path / table
        try:
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
        except FileNotFoundError:
            raise RunError(f"{path} is missing") from None
        if rows and tuple(rows[0]) != TABLES[table]:
            raise RunError(f"{path} has the columns {','.join(rows[0])}; expected {','.join(TABLES[table])}")
        return rows


def _csv(rows: Iterable[tuple[object, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _complete_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [line for line in lines[1:] if line.endswith("\n") and line[0].isdigit()]
