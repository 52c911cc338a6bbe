"""The paper's tables and figures as data (experiments/*.toml)."""

import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedpac.config import Config, make_config
from fedpac.config_values import read_config
from fedpac.errors import ConfigError, unknown
from fedpac.methods import find_method, list_methods
from fedpac.methods.base import Which
from fedpac.strict import checked, shown


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TableRow(_Frozen):
    """A row of the table: a method with its settings, or what another row's run gives besides."""

    title: str = ""  # left out, that of the method
    method: dict[str, Any] = {}  # as in a run's config; left out, the method of the row's name
    server: dict[str, Any] = {}  # the same, of the section `server`
    training: dict[str, Any] = {}  # what differs from the setting's `training`: rates tuned for this method
    rate: Annotated[float, Field(gt=0)] = 1.0  # times the learning rate that the row would have otherwise
    by_product_of: str | None = None
    accuracy: Which | None = None  # received or personal; left out, the one the method reports


class Setting(_Frozen):
    """A column of the table, or a point of the figure: what all its runs share, and what the paper found."""

    title: str
    model: str = "paper"
    data: dict[str, Any]
    training: dict[str, Any] = {}
    run: dict[str, Any] = {}
    x: float | None = None  # where the setting stands on the axis of a sweep
    paper: dict[str, Annotated[float, Field(ge=0, le=100)]] = {}


class Experiment(_Frozen):
    """One table or figure."""

    name: str
    argument: str  # what `fedpac reproduce` finds it by: the name, or the user's file
    title: str
    source: str = ""  # where in the paper
    place: int = 1000  # on the page of results
    shows: Literal["table", "sweep", "curves", "weights"] = "table"
    axis: str = ""
    until: Annotated[int, Field(ge=1)] | None = None  # rounds that are enough here; left out, all of them
    methods: Annotated[dict[str, TableRow], Field(min_length=1)]
    settings: Annotated[dict[str, Setting], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for key, row in self.methods.items():
            if not row.title and key not in list_methods():
                raise ValueError(f"methods.{key} needs a title, or the name of a method.")
            if row.by_product_of is not None:
                if row.by_product_of not in self.methods:
                    raise ValueError(f"methods.{key}: {unknown('row', row.by_product_of, self.methods)}")
                if row.accuracy is None or row.method or row.server or row.training or row.rate != 1:
                    raise ValueError(f"methods.{key}: a by-product needs `accuracy` and cannot have its own method.")
        if self.shows == "weights" and len(self.methods) > 1:
            raise ValueError(f"a figure of weights shows one method, but there are {', '.join(self.methods)}.")
        for key in (*self.methods, *self.settings):
            if not re.fullmatch(r"[\w+-][\w.,+-]*", key):
                raise ValueError(
                    f"'{key}' names a folder: use only letters, digits and . , + - _, and do not start with a dot."
                )
        for key, setting in self.settings.items():
            if "seed" in setting.run:
                raise ValueError(f"settings.'{key}'.run has a seed; use --seeds instead.")
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
        return row if row in list_methods() else str(self._method(row)["name"])

    def accuracy_of(self, row: str) -> Which:
        return self.methods[row].accuracy or find_method(self._method(row)["name"]).reported

    def _method(self, row: str) -> dict[str, Any]:
        run = self.run_of(row)
        return {"name": run, **self.methods[run].method}

    def config(self, setting: str, row: str, seed: int) -> Config:
        shared = self.settings[setting].model_dump(include={"model", "data", "training", "run"})
        try:
            run = self.methods[self.run_of(row)]
            training = {**shared["training"], **run.training}
            own = {"method": self._method(row), "server": run.server, "training": training}
            config = make_config({**shared, **own, "run": {**shared["run"], "seed": seed}})
            rated = config.training.model_copy(update={"lr": run.rate * config.training.lr})
            return config.model_copy(update={"training": rated})
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
    raise ConfigError(unknown("table or figure", name, ["all", *shipped()]) + " Your own file must end in .toml.")


def read_experiment(path: Path, argument: str | None = None) -> Experiment:
    values = read_config(path)
    if "gathers" in values:
        values = _gathered(values, path)
    try:
        return checked(Experiment, {**values, "name": path.stem, "argument": argument or str(path)})
    except ValidationError as error:
        problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")  # a typo is a cause
        raise ConfigError(f"{path}: {_explain(problems[0])}") from None


def _explain(problem: Any) -> str:
    *place, last = [*map(str, problem["loc"])] or [""]
    where = ".".join([*place, last])
    if problem["type"] == "extra_forbidden":
        part: type[BaseModel] = {0: Experiment}.get(len(place), TableRow if place[:1] == ["methods"] else Setting)
        keys = set(part.model_fields) - {"name", "argument"}  # those two the file does not say
        return f"{'.'.join(place)}{': ' if place else ''}{unknown('key', last, keys)}"
    if problem["type"] == "missing":
        return f"{where} is missing"
    if problem["type"] == "model_type":
        return f"{where} = {shown(problem['input'])}: expected a table such as {{}}"
    return f"{where}{': ' if where else ''}{problem['msg'].removeprefix('Value error, ')}"


def _gathered(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """One table of the rows of several others beside it, in the settings named by `only`."""
    gathered: dict[str, Any] = {k: v for k, v in values.items() if k not in ("gathers", "only")}
    gathered |= {"methods": {}, "settings": {}}
    for key in ("gathers", "only"):
        if not isinstance(values.get(key), list):
            raise ConfigError(f"{path}: a table that combines others needs two lists, `gathers` and `only`.")
    for name in values["gathers"]:
        part = read_config(path.with_name(f"{name}.toml"))
        gathered["methods"] |= part["methods"]
        for key in values["only"]:
            if key not in part["settings"]:
                raise ConfigError(f"{path.with_name(name)}.toml: {unknown('setting', key, part['settings'])}")
            paper = gathered["settings"].get(key, {}).get("paper", {}) | part["settings"][key].get("paper", {})
            gathered["settings"][key] = {**part["settings"][key], "paper": paper}
    return gathered
