"""The rows of a table with the runs that fill them, and the ground on which rows can be compared."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedpac.errors import FedpacError
from fedpac.methods.base import Which
from fedpac.runs.run_data import RunData
from fedpac.runs.seeds import counting, stand_in_mark
from fedpac.tables.cells import Cell, cells
from fedpac.tables.results import ResultsFolder
from fedpac.tables.spec import Experiment, Setting


@dataclass(frozen=True)
class FilledRow:
    """A row of the experiment in one setting, with the runs that count: one for each seed that is finished; as long as
    none is, one for each that has begun."""

    experiment: Experiment
    setting: str
    row: str
    runs: list[RunData]
    begun: list[RunData]  # further seeds, which are not finished yet
    unusable: int = 0  # folders that are damaged or hold another run

    @property
    def title(self) -> str:
        return self.experiment.title_of(self.row)

    @property
    def which(self) -> Which:
        return self.experiment.accuracy_of(self.row)

    @property
    def method(self) -> str:
        return self.experiment.method_of(self.row)

    @property
    def paper(self) -> float | None:
        return self.experiment.settings[self.setting].paper.get(self.row)

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def last(self) -> int:
        """The last round that has been evaluated with every seed."""
        return min(max(run.accuracy[self.which]) for run in self.runs)

    def at(self, round: int, which: Which | None = None) -> np.ndarray[Any, Any]:
        """Accuracy in per cent, for each seed."""
        return np.array([100 * run.means[which or self.which][round] for run in self.runs])

    @property
    def seeds(self) -> set[int]:
        return {run.seed for run in self.runs}

    def on(self, seeds: set[int]) -> "FilledRow":
        """The same with some of the seeds."""
        return replace(self, runs=[run for run in self.runs if run.seed in seeds])

    @cached_property
    def final(self) -> float:
        return float(self.at(self.last).mean())

    @cached_property
    def best(self) -> tuple[float, int]:
        shared = set.intersection(*(set(run.accuracy[self.which]) for run in self.runs))
        return max((float(self.at(t).mean()), -t) for t in shared)


@dataclass(frozen=True)
class Ground:
    """What all rows have in common, so that they can be compared: seeds, and the last round that all have with them."""

    seeds: set[int]
    round: int

    @classmethod
    def of(cls, ran: Sequence[FilledRow]) -> "Ground":
        each = [row.seeds for row in ran]
        seeds = set.intersection(*each) or set.union(*each)
        rounds = (set(run.accuracy[row.which]) for row in ran for run in row.on(seeds).runs)
        return cls(seeds, max(set.intersection(*rounds)))

    def __str__(self) -> str:
        return f"round {self.round}, {self.named_seeds}"

    @property
    def named_seeds(self) -> str:
        return f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, sorted(self.seeds)))}"

    def of_row(self, row: FilledRow) -> np.ndarray[Any, Any]:
        return row.on(self.seeds).at(self.round)


@dataclass(frozen=True)
class FilledTable:
    """An experiment with what has been run of it."""

    experiment: Experiment
    root: Path  # where the runs are
    rows: dict[str, list[FilledRow]]  # of every setting
    status: Counter[str]  # of the cells of seed 0

    @classmethod
    def of(cls, experiment: Experiment, results: ResultsFolder) -> Self:
        first = {(cell.setting, cell.row): cell for cell in cells(experiment, results)}
        runs = {place: _runs(cell) for place, cell in first.items()}
        own = {row: experiment.run_of(row) for row in experiment.methods}
        rows = {
            setting: [_filled(experiment, setting, row, *runs[setting, run]) for row, run in own.items()]
            for setting in experiment.settings
        }
        return cls(experiment, results.path, rows, Counter(cell.status for cell in first.values()))


def _runs(first: Cell) -> tuple[list[RunData], int]:
    """The runs of a cell and of those that differ in the seed alone, and how many there are that cannot be used."""
    runs: list[RunData] = []
    unusable = 0
    endings = (path.name.removeprefix(f"{first.row}-seed") for path in first.folder.parent.glob(f"{first.row}-seed*"))
    for seed in sorted(int(ending) for ending in endings if ending.isdecimal()):
        try:
            runs += [run] if (run := (replace(first, seed=seed) if seed else first).read()) else []
        except FedpacError:  # `fedpac reproduce` says what is wrong with it
            unusable += 1
    return runs, unusable


def _filled(experiment: Experiment, setting: str, row: str, runs: list[RunData], unusable: int) -> FilledRow:
    counted = counting(runs)
    return FilledRow(experiment, setting, row, counted, [run for run in runs if run not in counted], unusable)


def named(setting: Setting, rows: Sequence[FilledRow]) -> str:
    """The setting's title. Data that are not the paper's are never shown under its name alone."""
    return setting.title + stand_in_mark([stand_in(rows)])


def stand_in(rows: Sequence[FilledRow]) -> str:
    return next((run.note for row in rows for run in row.runs if run.note), "")
