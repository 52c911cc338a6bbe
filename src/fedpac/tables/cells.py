"""The runs that fill a table or figure.

A cell is one method in one setting with one seed. It lives in a run folder named after the three, so tables that share
a cell share the run, and whatever has been run is never run again.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from fedpac.callbacks import Given
from fedpac.config import Config
from fedpac.errors import ConfigError, FedpacError, RunError, RunInUseError, unknown
from fedpac.rounds import RoundReport
from fedpac.runs.execute import advance
from fedpac.runs.folder import CHECKPOINT, RunStore
from fedpac.runs.run_data import RunData
from fedpac.tables.results import HeldRun, ResultsFolder
from fedpac.tables.spec import Experiment


@dataclass(frozen=True)
class Cell:
    experiment: Experiment
    setting: str
    row: str  # one that has a run of its own
    seed: int
    results: ResultsFolder

    @property
    def folder(self) -> Path:
        return self.results.path / self.setting.replace(",", "-") / f"{self.row}-seed{self.seed}"

    @cached_property
    def config(self) -> Config:
        return self.experiment.config(self.setting, self.row, self.seed)

    @property
    def rounds(self) -> int:
        """How many are wanted."""
        return min(self.experiment.until or self.config.run.rounds, self.config.run.rounds)

    def goal(self, rounds: int | None) -> int:
        """How many are wanted of a call that brings each run so far only."""
        return min(self.rounds, rounds or self.rounds)

    def done(self) -> int:
        """How many there are."""
        return self._rounds_in(self.folder)

    def _rounds_in(self, folder: Path) -> int:
        held = self._held(folder)
        return held.rounds if held else 0

    def _held(self, folder: Path) -> HeldRun | None:
        """What the folder has of this run; one that has another run is an error: nothing is ever mixed or replaced."""
        held = self.results.look(folder)
        if held and not held.is_run_of(self.config):
            raise RunError(
                f"{folder} holds a run with a different config than {self.experiment.name} needs; "
                "move it away, or choose another folder with --out"
            )
        return held

    @property
    def workplace(self) -> Path:
        """Where the run goes on: in its folder. If that came without its checkpoint, as from a version control
        system, the run is done again in a folder beside it, and what there is stays until that has come as far."""
        again, store = self.folder.with_name(f".{self.folder.name}.again"), RunStore(self.folder)
        stranded = self.done() and not store.finished and not (self.folder / CHECKPOINT).exists()
        swapping = again.exists() and not self.folder.exists()  # killed between the two steps of _settle()
        place = again if stranded or swapping else self.folder
        self._rounds_in(place)  # it must be this run
        return place

    @contextmanager
    def claimed(self) -> Iterator[Path]:
        """The workplace. As long as a run is done again in another folder, its own is locked: one without a checkpoint
        may also be one that another process has just begun."""
        place = self.workplace
        if place == self.folder:
            yield place
            return
        with RunStore(self.folder).locked() if self.folder.exists() else nullcontext():
            if self.workplace != place:
                raise RunInUseError(f"another process has worked on {self.folder}")
            yield place
            self._settle(place)

    def _settle(self, place: Path) -> None:
        """Put what was done again into the folder, once it is as much as there was."""
        if self._rounds_in(place) < self.done():
            return
        replaced = self.folder.with_name(f".{self.folder.name}.replaced")
        with RunStore(place).locked():
            shutil.rmtree(replaced, ignore_errors=True)  # of a call that was killed at the last step
            if self.folder.exists():
                self.folder.rename(replaced)
            place.rename(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)

    def reached(self, rounds: int | None = None) -> bool:
        """Whether the run has come as far as it should, in a call that brings each run so far only."""
        held = self._held(self.folder)
        if held is None:
            return False
        goal = self.goal(rounds)
        return held.rounds >= goal and (goal < self.config.run.rounds or held.finished)

    @property
    def status(self) -> Literal["missing", "begun", "ended", "unusable"]:
        try:
            return "ended" if self.reached() else "begun" if self.done() else "missing"
        except FedpacError:  # whoever wants to run it is told
            return "unusable"

    def read(self) -> RunData | None:
        """What there is of the run, if it has been evaluated once."""
        held = self._held(self.folder)
        return held.data if held else None


def all_cells(experiments: Sequence[Experiment], results: ResultsFolder, seeds: int = 1, only: str = "") -> list[Cell]:
    """The cells of several experiments, each run once; where `only` speaks of one of them, the others have none."""
    found: dict[Path, Cell] = {}
    problem: ConfigError | None = None
    _check_words(experiments, only)
    for experiment in experiments:
        try:
            mine = cells(experiment, results, seeds, only)
        except ConfigError as error:
            problem = error
            continue
        for cell in mine:
            known = found.setdefault(cell.folder, cell)
            if known is not cell and known.rounds < cell.rounds:
                found[cell.folder] = cell
    if not found and problem is not None:
        raise problem
    return list(found.values())


def _check_words(experiments: Sequence[Experiment], only: str) -> None:
    known = {word for experiment in experiments for key in experiment.settings for word in key.split(",")}
    known |= {row for experiment in experiments for row in experiment.methods}
    for word in filter(None, only.split(",")):
        if word not in known:
            raise ConfigError(f"--only: {unknown('setting or row', word, known)}")


def cells(experiment: Experiment, results: ResultsFolder, seeds: int = 1, only: str = "") -> list[Cell]:
    """All runs that the experiment needs, in the order in which they are worth running: one seed of everything first.

    `only` names settings by all of their words and rows by any of theirs: 'fashion-mnist,20' or 'cifar10,20,fedpac'.
    """
    settings, rows = _chosen(experiment, only)
    runs = dict.fromkeys(experiment.run_of(row) for row in rows)
    return [Cell(experiment, s, row, seed, results) for seed in range(seeds) for s in settings for row in runs]


def _chosen(experiment: Experiment, only: str) -> tuple[list[str], list[str]]:
    words = {key: set(key.split(",")) for key in experiment.settings}
    wanted = [word for word in only.split(",") if word]
    _check_words([experiment], only)
    rows = [word for word in wanted if word in experiment.methods]
    places = {word for word in wanted if word not in experiment.methods}
    settings = [key for key, own in words.items() if places <= own]
    if not settings:
        raise ConfigError(f"--only: no setting of {experiment.name} has all of {', '.join(sorted(places))}")
    exact = [key for key in settings if words[key] == places]  # 'cifar10,20' is not 'cifar10,20,s80'
    return exact or settings, rows or list(experiment.methods)


def fill(
    wanted: Sequence[Cell],
    *,
    minutes: float | None = None,
    rounds: int | None = None,
    data_dir: Path | None = None,
    workers: int | None = None,
    watching: Callable[[int, Cell], AbstractContextManager[Sequence[Given]]] = lambda at, cell: nullcontext(()),
    failed: Callable[[Cell, FedpacError], None] | None = None,
) -> Iterator[Cell]:
    """Run what is missing, one cell after the other; yields each cell that has come as far as it should.

    Stops when the minutes are over, in the middle of a cell, which a later call takes up where it was left. With
    `rounds`, every cell is brought that far only. `watching` is told which cell comes next, and gives its
    callbacks. `failed` is told of a cell that cannot be run, and the next one follows; without it, it is an
    error.
    """
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes

    def late() -> bool:
        return time.monotonic() >= deadline

    for at, cell in enumerate(wanted):
        try:
            if cell.reached(rounds):
                continue
            if late():
                return

            def stop(report: RoundReport, goal: int = cell.goal(rounds)) -> bool:
                return late() or report.round >= goal

            with watching(at, cell) as callbacks, cell.claimed() as place:
                advance(cell.config, place, data_dir, [*callbacks, stop], workers)
        except RunInUseError:
            continue  # several processes may fill one folder of results: another one has this cell
        except FedpacError as error:
            if failed is None:
                raise
            failed(cell, error)
            continue
        if cell.reached(rounds):
            yield cell
