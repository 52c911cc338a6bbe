"""A run's folder: plain files that anything else (tables, figures, a spreadsheet) can read.

config.toml        what was run, complete                 metrics.csv   round,client,split,accuracy,loss
clients.csv        what every client holds                weights.csv   round,client,peer,weight
environment.json   machine, versions, commands            rounds.csv    seconds and bytes of every round
summary.json       the result, when the run is finished   checkpoint.safetensors   to continue from
"""

import csv
import errno
import fcntl
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from fedpac.errors import RunError, RunInUseError
from fedpac.federation import RoundReport

METRICS = ("round", "client", "split", "accuracy", "loss")
WEIGHTS = ("round", "client", "peer", "weight")
ROUNDS = ("round", "participants", "seconds", "client_seconds", "bytes_down", "bytes_up")
CLIENTS = ("client", "name", "group", "train", "test")  # and class_0, class_1, ...: training samples of each class
TABLES = {"metrics.csv": METRICS, "weights.csv": WEIGHTS, "rounds.csv": ROUNDS}

CHECKPOINT = "checkpoint.safetensors"
LOCK = ".lock"
DATA_DIR = ".data-dir"  # where the data were; a file of its own, since it holds for this machine only

Row: TypeAlias = Sequence[object]


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what the operating system says of a folder into what the user can do about it."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "the disk is full: free some space, then continue with 'fedpac resume'",
            errno.EDQUOT: "your disk quota is used up: free some space, then continue with 'fedpac resume'",
            errno.EROFS: "the file system is read-only: choose another folder",
            errno.EACCES: "writing there is not allowed: choose another folder or change its permissions",
            errno.ENOTDIR: "a part of that path is a file, not a folder",
            errno.EEXIST: "that is a file, not a folder",
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


def once_more(folder: Path) -> str:
    """What to do about a run that cannot go on."""
    return f"do it all again with 'fedpac run {folder / 'config.toml'} --out' and a new folder"


class RunStore:
    """One run's folder. Whoever writes to it does so inside `locked()`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path) -> "RunStore":
        store = cls(path)
        if not store.begun:
            raise RunError(f"{path} holds no run: there is no config.toml in it")
        return store

    @contextmanager
    def locked(self, create: bool = False) -> Iterator[None]:
        """Keeps a second writer out. The lock is this process's own and dies with it: forked workers do not hold it.

        With `create`, the folder is made if there is none, and removed again if no run was put into it.
        """
        with explained(self.path):
            made = [folder for folder in (self.path, *self.path.parents) if create and not folder.exists()]
            if create:
                self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / LOCK).open("a")
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunInUseError(f"another process is writing the run in {self.path}") from None
            try:
                for leftover in self.path.glob(".*.tmp"):  # of a process that was killed while it wrote
                    leftover.unlink(missing_ok=True)
                yield
            finally:
                if made and not self.begun:
                    with suppress(OSError):
                        (self.path / LOCK).unlink()
                        for folder in made:
                            folder.rmdir()

    def create(self, config_toml: str, clients: Iterable[Row], classes: int) -> None:
        """Put a new run into the folder. config.toml comes last: a folder without it holds no run."""
        self.check_free()
        columns = (*CLIENTS, *(f"class_{k}" for k in range(classes)))
        try:
            with explained(self.path):
                write_atomically(self.path / "clients.csv", csv_lines([columns, *clients]).encode())
                for name, header in TABLES.items():
                    write_atomically(self.path / name, csv_lines([header]).encode())
                write_atomically(self.path / "config.toml", config_toml.encode())
        except RunError:
            for name in ("clients.csv", *TABLES):
                (self.path / name).unlink(missing_ok=True)
            raise

    def check_free(self) -> None:
        """A run goes into a folder of its own."""
        if self.begun:
            raise RunError(
                f"{self.path} already holds a run: continue it with 'fedpac resume {self.path}' or choose another"
            )
        ours = {LOCK, "clients.csv", *TABLES}  # left by a start that was interrupted
        with explained(self.path):
            if {entry.name for entry in self.path.iterdir()} - ours:
                raise RunError(f"{self.path} is not empty: choose a new folder for the run")

    @property
    def begun(self) -> bool:
        return (self.path / "config.toml").is_file()

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def append(self, report: RoundReport, sync: bool = False) -> None:
        """One round's rows, each table in one write. With `sync` they are on the disk when this returns."""
        t = report.round
        rows: dict[str, Iterable[Row]] = {
            "metrics.csv": [(t, s.client, s.which, repr(s.accuracy), repr(s.loss)) for s in report.scores],
            "weights.csv": [(t, i, j, repr(weight)) for i, j, weight in report.peer_weights if report.scores or t == 1],
            "rounds.csv": [
                (t, len(report.chosen), f"{report.seconds:.4f}", f"{report.client_seconds:.4f}",
                 report.bytes_down, report.bytes_up)
            ],
        }  # fmt: skip
        with explained(self.path):
            for name, lines in rows.items():
                with (self.path / name).open("a", newline="") as file:
                    file.write(csv_lines(lines))
                    if sync:
                        file.flush()
                        os.fsync(file.fileno())

    def truncate(self, round: int, evaluated: Sequence[int]) -> None:
        """Forget every row of later rounds, and a last line that was cut off in the middle.

        The rounds up to this one must be there, and the results of those that were evaluated; else nothing is changed.
        """
        kept: dict[str, dict[int, list[str]]] = {}  # table -> round -> lines
        with explained(self.path):
            for name in TABLES:
                lines = kept.setdefault(name, {})
                for line in _complete_lines(self.path / name):
                    if (t := int(line.split(",", 1)[0])) <= round:
                        lines.setdefault(t, []).append(line)
        results = 2 * len(self.rows("clients.csv"))  # received and personal of every client
        whole = {
            "rounds.csv": [*kept["rounds.csv"]] == list(range(1, round + 1)),
            "metrics.csv": {t: len(lines) for t, lines in kept["metrics.csv"].items()}
            == dict.fromkeys(evaluated, results),
        }
        if cut := [name for name, complete in whole.items() if not complete]:
            raise RunError(
                f"{self.path}: the checkpoint is of round {round}, but {cut[0]} does not hold all rounds up to it; "
                f"restore the file, or {once_more(self.path)}"
            )
        for name, columns in TABLES.items():
            text = "".join([csv_lines([columns]), *(line for lines in kept[name].values() for line in lines)])
            with explained(self.path):
                write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        with explained(self.path):
            write_atomically(self.path / name, (json.dumps(values, indent=2) + "\n").encode())

    def read_json(self, name: str) -> dict[str, Any]:
        try:
            values: dict[str, Any] = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            raise RunError(f"{self.path} has no {name}: finish the run with 'fedpac resume {self.path}'") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path / name} is damaged: {error}") from None
        return values

    def remember_data_dir(self, folder: Path) -> None:
        with explained(self.path):
            write_atomically(self.path / DATA_DIR, f"{folder}\n".encode())

    def data_dir(self) -> Path | None:
        path = self.path / DATA_DIR
        return Path(path.read_text().strip()) if path.is_file() else None

    def rows(self, table: str) -> list[dict[str, str]]:
        path = self.path / table
        expected = TABLES.get(table, CLIENTS)
        try:
            text = path.read_text()
            reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))  # without a line that was cut off
            rows = list(reader)
        except FileNotFoundError:
            raise RunError(f"{path} is missing") from None
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise RunError(f"{path} cannot be read: {error}") from None
        columns = reader.fieldnames or []
        if tuple(columns[: len(expected)]) != expected:
            raise RunError(f"{path} has the columns {','.join(columns)}; expected {','.join(expected)}")
        return rows


def csv_lines(rows: Iterable[Row]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _complete_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    lines = path.read_bytes().decode(errors="replace").splitlines(keepends=True)
    return [line for line in lines[1:] if line.endswith("\n") and line.split(",", 1)[0].isdigit()]
