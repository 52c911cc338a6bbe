"""The paper's tables and figures as data (experiments/*.toml), and the runs that fill them.

A cell is one method in one setting with one seed. It lives in a run folder named after the three, so tables that share
a cell share the run, and whatever has been run is never run again.
"""

import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedpac.config import Config, make_config, read_config
from fedpac.errors import ConfigError, FedpacError, RunError, RunInUseError, unknown
from fedpac.federation import RoundReport
from fedpac.methods import find_method, methods
from fedpac.methods.base import Which
from fedpac.runs.run import Progress, advance, fingerprint
from fedpac.runs.store import CHECKPOINT, RunStore
from fedpac.runs.tables import RunData, read_run


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(_Part):
    """A row of the table: a method with its settings, or what another row's run gives besides."""

    title: str = ""  # left out, that of the method
    method: dict[str, Any] = {}  # as in a run's config; left out, the method of the row's name
    by_product_of: str | None = None
    accuracy: Which | None = None  # received or personal; left out, the one the method reports


class Setting(_Part):
    """A column of the table, or a point of the figure: what all its runs share, and what the paper found."""

    title: str
    model: str = "paper"
    data: dict[str, Any]
    training: dict[str, Any] = {}
    run: dict[str, Any] = {}
    x: float | None = None  # where the setting stands on the axis of a sweep
    paper: dict[str, Annotated[float, Field(ge=0, le=100)]] = {}


class Experiment(_Part):
    """One table or figure."""

    name: str
    argument: str  # what `fedpac reproduce` finds it by: the name, or the user's file
    title: str
    source: str = ""  # where in the paper
    place: int = 1000  # on the page of results
    shows: Literal["table", "sweep", "curves", "weights"] = "table"
    axis: str = ""
    until: Annotated[int, Field(ge=1)] | None = None  # rounds that are enough here; left out, all of them
    methods: Annotated[dict[str, Row], Field(min_length=1)]
    settings: Annotated[dict[str, Setting], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for key, row in self.methods.items():
            if not row.title and key not in methods():
                raise ValueError(f"methods.{key} needs a title, or the name of a method.")
            if row.by_product_of is not None:
                if row.by_product_of not in self.methods:
                    raise ValueError(f"methods.{key}: {unknown('row', row.by_product_of, self.methods)}")
                if row.accuracy is None or row.method:
                    raise ValueError(f"methods.{key}: a by-product needs `accuracy`, and has no method of its own.")
        if self.shows == "weights" and len(self.methods) > 1:
            raise ValueError(f"a figure of weights is of one method, and here are {', '.join(self.methods)}.")
        for key in (*self.methods, *self.settings):
            if not re.fullmatch(r"[\w+-][\w.,+-]*", key):
                raise ValueError(f"'{key}' names a folder: use letters, digits and . , + - _ only, and no . first.")
        for key, setting in self.settings.items():
            if "seed" in setting.run:
                raise ValueError(f"settings.'{key}'.run has a seed; how many there are is said by --seeds.")
            for name in setting.paper:
                if name not in self.methods:
                    raise ValueError(f"settings.'{key}'.paper: {unknown('row', name, self.methods)}")
            if self.shows == "sweep" and setting.x is None:
                raise ValueError(f"settings.'{key}': a sweep needs `x`, the setting's place on the axis.")
        return self

    def title_of(self, row: str) -> str:
        return self.methods[row].title or find_method(row).title

    def run_of(self, row: str) -> str:
        """The row whose run holds this row's numbers."""
        return self.methods[row].by_product_of or row

    def method_of(self, row: str) -> str:
        """The name of the method that the row shows."""
        return row if row in methods() else str(self._method(row)["name"])

    def accuracy_of(self, row: str) -> Which:
        return self.methods[row].accuracy or find_method(self._method(row)["name"]).reported

    def _method(self, row: str) -> dict[str, Any]:
        run = self.run_of(row)
        return {"name": run, **self.methods[run].method}

    def config(self, setting: str, row: str, seed: int) -> Config:
        shared = self.settings[setting].model_dump(include={"model", "data", "training", "run"})
        try:
            return make_config({**shared, "method": self._method(row), "run": {**shared["run"], "seed": seed}})
        except ConfigError as error:
            raise ConfigError(f"{self.argument}, setting '{setting}', row '{row}': {error}") from None


# --- reading ------------------------------------------------------------------------------------------------------


@cache
def shipped() -> dict[str, Experiment]:
    """The paper's tables and figures, in the order of the page of results."""
    folder = resources.files("fedpac") / "experiments"
    names = [file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")]
    found = [read_experiment(Path(str(folder / f"{name}.toml")), name) for name in names]
    return {experiment.name: experiment for experiment in sorted(found, key=lambda e: (e.place, e.name))}


def find_experiments(name: str) -> list[Experiment]:
    """By name, by file, or 'all' of them."""
    if name == "all":
        return list(shipped().values())
    if name in shipped():
        return [shipped()[name]]
    if name.endswith(".toml"):
        return [read_experiment(Path(name))]
    raise ConfigError(unknown("table or figure", name, ["all", *shipped()]) + " A file of your own ends in .toml.")


def read_experiment(path: Path, argument: str | None = None) -> Experiment:
    values = read_config(path)
    if "gathers" in values:
        values = _gathered(values, path)
    try:
        return Experiment.model_validate({**values, "name": path.stem, "argument": argument or str(path)})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        what = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{path}: {where}{': ' if where else ''}{what}") from None


def _gathered(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """One table of the rows of several others beside it, in the settings named by `only`."""
    gathered: dict[str, Any] = {k: v for k, v in values.items() if k not in ("gathers", "only")}
    gathered |= {"methods": {}, "settings": {}}
    for key in ("gathers", "only"):
        if not isinstance(values.get(key), list):
            raise ConfigError(f"{path}: a table that gathers others needs two lists, `gathers` and `only`.")
    for name in values["gathers"]:
        part = read_config(path.with_name(f"{name}.toml"))
        gathered["methods"] |= part["methods"]
        for key in values["only"]:
            if key not in part["settings"]:
                raise ConfigError(f"{path.with_name(name)}.toml: {unknown('setting', key, part['settings'])}")
            paper = gathered["settings"].get(key, {}).get("paper", {}) | part["settings"][key].get("paper", {})
            gathered["settings"][key] = {**part["settings"][key], "paper": paper}
    return gathered


# --- cells --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    experiment: Experiment
    setting: str
    row: str  # one that has a run of its own
    seed: int
    root: Path

    @property
    def folder(self) -> Path:
        return self.root / self.setting.replace(",", "-") / f"{self.row}-seed{self.seed}"

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
        """A folder that holds another run is an error: nothing is ever mixed or replaced."""
        path = folder / "config.toml"
        if not path.is_file():
            return 0
        if fingerprint(make_config(read_config(path))) != fingerprint(self.config):
            raise RunError(
                f"{folder} holds a run with another config than {self.experiment.name} asks for; "
                "move it away, or give another folder with --out"
            )
        return len(RunStore(folder).rows("rounds.csv"))

    @property
    def workplace(self) -> Path:
        """Where the run goes on: in its folder. If that came without its checkpoint, as from a version control
        system, the run is done again in a folder beside it, and what there is stays until that has come as far."""
        again, store = self.folder.with_name(f".{self.folder.name}.again"), RunStore(self.folder)
        stranded = self.done() and not store.finished and not (self.folder / CHECKPOINT).exists()
        swapping = again.exists() and not self.folder.exists()  # killed between the two steps of settle()
        place = again if stranded or swapping else self.folder
        self._rounds_in(place)  # it must be this run
        return place

    def settle(self, place: Path) -> None:
        """Put what was done again into the folder, once it is as much as there was."""
        if place == self.folder or self._rounds_in(place) < self.done():
            return
        replaced = self.folder.with_name(f".{self.folder.name}.replaced")
        with RunStore(place).locked(), RunStore(self.folder).locked() if self.folder.exists() else nullcontext():
            shutil.rmtree(replaced, ignore_errors=True)  # of a call that was killed at the last step
            if self.folder.exists():
                self.folder.rename(replaced)
            place.rename(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)

    def reached(self, goal: int) -> bool:
        return self.done() >= goal and (goal < self.config.run.rounds or RunStore(self.folder).finished)

    def read(self) -> RunData | None:
        """What there is of the run, if it has been evaluated once."""
        if not self.done():
            return None
        try:
            return read_run(self.folder)
        except RunError:
            return None


def all_cells(experiments: Sequence[Experiment], root: Path, seeds: int = 1, only: str = "") -> list[Cell]:
    """The cells of several experiments, each run once; where `only` speaks of one of them, the others have none."""
    found: dict[Path, Cell] = {}
    problem: ConfigError | None = None
    for experiment in experiments:
        try:
            mine = cells(experiment, root, seeds, only)
        except ConfigError as error:
            problem = error
            continue
        for cell in mine:
            known = found.setdefault(cell.folder, cell)
            if known.rounds < cell.rounds:
                found[cell.folder] = cell
    if not found and problem is not None:
        raise problem
    return list(found.values())


def cells(experiment: Experiment, root: Path, seeds: int = 1, only: str = "") -> list[Cell]:
    """All runs that the experiment needs, in the order in which they are worth running: one seed of everything first.

    `only` names settings by all of their words and rows by any of theirs: 'fashion-mnist,20' or 'cifar10,20,fedpac'.
    """
    settings, rows = _chosen(experiment, only)
    runs = dict.fromkeys(experiment.run_of(row) for row in rows)
    return [Cell(experiment, s, row, seed, root) for seed in range(seeds) for s in settings for row in runs]


def _chosen(experiment: Experiment, only: str) -> tuple[list[str], list[str]]:
    words = {key: set(key.split(",")) for key in experiment.settings}
    wanted = [word for word in only.split(",") if word]
    known = set().union(*words.values()) | set(experiment.methods)
    for word in wanted:
        if word not in known:
            raise ConfigError(f"--only: {unknown('setting or row', word, known)}")
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
    watch: Callable[[int, Cell], AbstractContextManager[Progress | None]] = lambda at, cell: nullcontext(),
    failed: Callable[[Cell, FedpacError], None] | None = None,
) -> Iterator[Cell]:
    """Run what is missing, one cell after the other; yields each cell that has come as far as it should.

    Stops when the minutes are over, in the middle of a cell, which a later call takes up where it was left. With
    `rounds`, every cell is brought that far only. `watch` is told which cell comes next, and gives what is to
    look at its rounds. `failed` is told of a cell that cannot be run, and the next one follows; without it, it is an
    error.
    """
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes

    def late() -> bool:
        return time.monotonic() >= deadline

    for at, cell in enumerate(wanted):
        goal = cell.goal(rounds)
        if cell.reached(goal):
            continue
        if late():
            return

        def stop(report: RoundReport, goal: int = goal) -> bool:
            return late() or report.round >= goal

        try:
            with watch(at, cell) as progress:
                place = cell.workplace
                advance(cell.config, place, data_dir, progress, workers, stop)
                cell.settle(place)
        except RunInUseError:
            continue  # several processes may fill one folder of results: another one has this cell
        except FedpacError as error:
            if failed is None:
                raise
            failed(cell, error)
            continue
        if cell.reached(goal):
            yield cell
