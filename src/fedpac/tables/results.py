"""The folder of results: each run in it is read once, and again only after its files have changed."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from fedpac.config import Config, make_config
from fedpac.config_values import read_config
from fedpac.errors import FedpacError, NotEvaluatedError
from fedpac.runs.execute import fingerprint
from fedpac.runs.folder import RunStore
from fedpac.runs.read import read_run
from fedpac.runs.run_data import RunData

FILES = ("config.toml", "clients.csv", "environment.json", "metrics.csv", "rounds.csv", "summary.json")
Stamp: TypeAlias = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class HeldRun:
    """What there is of a run."""

    values: dict[str, Any]  # its config
    rounds: int
    finished: bool
    data: RunData | None  # none before the first evaluation

    def is_run_of(self, config: Config) -> bool:
        """A method of somebody's own is imported only if this config names it, too, not because the folder does."""
        return bool(self.values["method"]["name"] == config.method["name"]) and self._fingerprint == fingerprint(config)

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(make_config(self.values))


class ResultsFolder:
    """What tables, the page and figures all read from, so that a run is not read again for each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[Path, tuple[Stamp, HeldRun | FedpacError]] = {}

    def look(self, folder: Path) -> HeldRun | None:
        """The run in that folder; none if it holds none. One that cannot be read is an error, each time."""
        if not (folder / "config.toml").is_file():
            return None
        stamp = tuple(_stamp(folder / name) for name in FILES)
        known = self._known.get(folder)
        if known is None or known[0] != stamp:
            known = self._known[folder] = (stamp, _read(folder))
        if isinstance(known[1], FedpacError):
            raise known[1]
        return known[1]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(folder: Path) -> HeldRun | FedpacError:
    store, data = RunStore(folder), None
    try:
        try:
            data = read_run(folder)
            values, rounds = data.config, data.last_round
        except NotEvaluatedError:
            values, rounds = read_config(folder / "config.toml"), len(store.rows("rounds.csv"))
        return HeldRun(values, rounds, store.finished, data)
    except FedpacError as error:
        return error
