"""One validated experiment config: TOML in, TOML out. A wrong key or value names itself and what is allowed."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedpac.data.config import PRESETS, DataConfig
from fedpac.errors import ConfigError, unknown
from fedpac.methods import Method, make_method
from fedpac.strict import checked
from fedpac.task import Recipe

Section = TypeVar("Section", bound=BaseModel)

# The paper's settings where they depend on the data set (appendix B); Recipe holds the others.
PAPER_RECIPES: dict[str, dict[str, Any]] = {
    "cifar10": {"lr": 0.02},
    "cinic10": {"lr": 0.02},
    "emnist": {"batch": 100},
    "digits": {"batch": 10},  # not the paper's: its clients are smaller
}


class RunConfig(BaseModel):
    """How long, with whom and on what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: Annotated[int, Field(ge=1, le=1_000_000, description="communication rounds")] = 200
    seed: Annotated[int, Field(ge=0, lt=2**63, description="names every random stream of the run")] = 0
    participation: Annotated[
        float,
        Field(gt=0, le=1, description="share of clients in a round, all in the last; 1, dirichlet 0.3, scarce 0.03"),
    ] = 1.0
    evaluate_every: Annotated[int, Field(ge=1, description="rounds between evaluations; the last round always")] = 5
    checkpoint_every: Annotated[int, Field(ge=1, description="rounds between checkpoints")] = 10
    engine: Annotated[Literal["auto", "process", "serial"], Field(description="where clients are trained")] = "auto"
    device: Annotated[
        str, Field(description="what clients are trained on: cpu, or a device of torch's such as cuda")
    ] = "cpu"
    workers: Annotated[int | None, Field(ge=1, le=4096, description="worker processes; one per core if not given")] = (
        None
    )


class Config(BaseModel):
    """One run. `method` holds the method's name and its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: dict[str, Any] = Field(default_factory=lambda: {"name": "fedpac"})
    model: Annotated[Literal["paper", "logistic"], Field(description="the network")] = "paper"
    data: DataConfig = DataConfig()
    training: Recipe = Recipe()
    run: RunConfig = RunConfig()

    def make_method(self) -> Method:
        settings = dict(self.method)
        return make_method(settings.pop("name", "fedpac"), settings)

    def to_toml(self) -> str:
        text = tomli_w.dumps(self.model_dump(exclude_none=True, mode="json"))
        return re.sub(r"\[\n([^\[\]]*?),?\n *\]", lambda found: f"[{' '.join(found[1].split())}]", text)  # short lists


def make_config(values: dict[str, Any]) -> Config:
    """Validate nested values, filling what is not said with the paper's settings for the data set and the scenario."""
    values = {**values}
    if isinstance(values.get("method"), str):
        values["method"] = {"name": values["method"]}
    try:
        config = checked(Config, values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem) for problem in error.errors())) from None
    method = config.make_method()  # its settings are checked now, and their defaults written out
    settings = method.model_dump(exclude_none=True, mode="json")
    used = {"name": config.method.get("name", "fedpac"), **settings}
    training = _filled(config.training, PAPER_RECIPES.get(config.data.dataset, {}))
    run = _filled(config.run, {"participation": PRESETS[config.data.scenario].participation})
    return config.model_copy(update={"method": used, "data": config.data.resolved(), "training": training, "run": run})


def _filled(section: Section, usual: Mapping[str, Any]) -> Section:
    """The section with the usual values for keys that were not given."""
    return section.model_copy(update={k: v for k, v in usual.items() if k not in section.model_fields_set})


def read_config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the config file {path} is not valid TOML: {error}") from None


def override(values: dict[str, Any], assignment: str) -> dict[str, Any]:
    """Values with one field changed: 'training.lr=0.05', 'method.lam=0'."""
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise ConfigError(f"'{assignment}' is not of the form section.key=value, such as training.lr=0.05")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    return changed(values, key, value)


def changed(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Values with the field 'section.key' set; what they were is left as it is."""
    result = {**values}
    at = result
    *sections, last = key.split(".")
    for name in sections:
        inner = at.get(name, {})
        if name == "method" and isinstance(inner, str):  # short for [method] name = ...
            inner = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"config: {name} = {inner!r}: expected a section with keys such as {key}")
        at[name] = {**inner}
        at = at[name]
    at[last] = value
    return result


def _explain(problem: Any) -> str:
    path = [str(part) for part in problem["loc"]]
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        section: type[BaseModel] = Config
        for part in path[:-1]:
            annotation = section.model_fields[part].annotation
            assert isinstance(annotation, type)
            section = annotation
        return f"config: {key}: " + unknown("key", path[-1], section.model_fields)
    message = problem["msg"].removeprefix("Value error, ")
    return f"config: {key} = {problem['input']!r}: {message[0].lower() + message[1:]}"
