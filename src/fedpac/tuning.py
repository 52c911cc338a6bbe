"""Settings chosen on validation data, with the same budget for every method.

A trial is an ordinary run in a folder of its own, with some settings that Optuna proposes. What counts is its
validation value in the round that validation data chose; nobody looks at test data before the choice is made. What was
tried is in trials.jsonl, one line for each trial; from it a later call goes on as if there had been no interruption.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from pydantic.fields import FieldInfo

from fedpac.config import Config, make_config
from fedpac.config_values import changed
from fedpac.data.scenario import predicts_numbers
from fedpac.errors import ConfigError, RunError, TrainingError, unknown
from fedpac.extras import library
from fedpac.files import explained, write_atomically
from fedpac.methods import find_method
from fedpac.metrics import METRICS
from fedpac.provenance import provenance
from fedpac.randomness import stream_seed
from fedpac.recipe import Recipe
from fedpac.runs.execute import advance
from fedpac.runs.folder import RunStore

TRIALS = "trials.jsonl"
SHARE = 0.2  # of each client's training samples, to choose by
TOLERANCE = 1e-3
WIDE = 10.0  # a setting is searched from a tenth of its default to ten times as much
STARTUP = 5  # random trials before Optuna's model of them has a say
Value: TypeAlias = float | int | str | bool


@dataclass(frozen=True)
class Range:
    """Between two numbers, evenly or by orders of magnitude."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', log' if self.log else ''}"


@dataclass(frozen=True)
class Choice:
    values: tuple[Value, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


Space: TypeAlias = dict[str, Range | Choice]  # by the key of the config, such as 'training.lr'


@dataclass(frozen=True)
class Trial:
    number: int
    params: dict[str, Value]
    value: float | None  # on validation data; None where training diverged
    round: int | None  # the one that validation data chose
    folder: str
    failure: str = ""


@dataclass(frozen=True)
class Budget:
    """What every method gets."""

    trials: int
    rounds: int
    seed: int
    by: str  # the metric, on validation data
    sampler: str = "Optuna's TPE; the first trial has the defaults"


@dataclass(frozen=True)
class Tuned:
    """One method's trials."""

    method: str
    space: Space
    budget: Budget
    folder: Path
    trials: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Trial:
        done = [trial for trial in self.trials if trial.value is not None]
        if not done:
            raise RunError(
                f"{self.folder}: training diverged in all {len(self.trials)} trials; search smaller learning rates"
            )
        sign = 1 if METRICS[self.budget.by].higher else -1
        return max(done, key=lambda trial: (sign * (trial.value or 0.0), -trial.number))


# --- what is searched ---------------------------------------------------------------------------------------------


def default_space(config: Config) -> Space:
    """The learning rate and every number among the method's settings that is not whole, around its default.

    One rule for all methods, also for one's own: from a tenth of the default to ten times as much, within what is
    allowed. Defaults of a thousandth or less are tolerances, and one at its largest value is a limit that is off: they
    stay.
    """
    space: Space = {"training.lr": _around(config.training.lr, Recipe.model_fields["lr"])}
    for key, setting in find_method(config.method["name"]).model_fields.items():
        default = config.method.get(key, setting.default)
        if type(default) is float and default > TOLERANCE and default < _most(setting):
            space[f"method.{key}"] = _around(default, setting)
    return space


def _around(default: float, setting: FieldInfo) -> Range:
    return Range(default / WIDE, min(default * WIDE, _most(setting)), log=True)


def _most(setting: FieldInfo) -> float:
    """The largest value that is allowed."""
    bounds = {name: float(getattr(m, name)) for m in setting.metadata for name in ("le", "lt") if hasattr(m, name)}
    return bounds.get("le", 0.99 * bounds.get("lt", math.inf))


def parsed(assignment: str) -> tuple[str, Range | Choice]:
    """'training.lr=0.001:0.3' (by orders of magnitude where it spans one), or 'training.batch=10,20,50'."""
    key, equals, text = assignment.partition("=")
    if not equals or not key or not text:
        raise ConfigError(f"'{assignment}': expected a range such as training.lr=0.001:0.3, or values such as 10,20")
    low, colon, high = text.partition(":")
    if not colon:
        return key, Choice(tuple(_plain(part) for part in text.split(",")))
    ends = _plain(low), _plain(high)
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends) or not ends[0] < ends[1]:  # type: ignore[operator]
        raise ConfigError(f"'{assignment}': expected two numbers, the smaller one first")
    a, b = float(ends[0]), float(ends[1])
    return key, Range(a, b, log=a > 0 and b / a >= WIDE, whole=all(isinstance(end, int) for end in ends))


def _plain(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


# --- the search ---------------------------------------------------------------------------------------------------


def prepared(values: dict[str, Any]) -> Config:
    """The config of a trial: with validation data, evaluated often enough to choose a round."""
    data = values.get("data", {})
    if values.get("federation") is None and not (isinstance(data, dict) and data.get("validation_share")):
        values = changed(values, "data.validation_share", SHARE)
    return make_config(values)


def tune(
    values: dict[str, Any],
    folder: Path,
    trials: int,
    vary: Sequence[str] = (),
    data_dir: Path | None = None,
    workers: int | None = None,
    seen: Callable[[Trial], None] | None = None,
) -> Tuned:
    """Search the settings of one method; `values` is its config. What the folder has of it is not done again."""
    config = prepared(values)
    if config.federation is not None:
        raise ConfigError(
            "tuning a real federation would retrain at its sites for every trial; tune on your own data instead"
        )
    space = default_space(config) | dict(parsed(one) for one in vary if _concerns(one, config))
    by = config.run.select_by or ("r2" if predicts_numbers(config.data) else "accuracy")
    budget = Budget(trials, config.run.rounds, config.run.seed, by)
    tuned = Tuned(config.method["name"], space, budget, folder, [])
    for trial in _trials(tuned, values, data_dir, workers):
        tuned.trials.append(trial)
        if seen is not None:
            seen(trial)
    _write(tuned, values)
    return tuned


def _concerns(assignment: str, config: Config) -> bool:
    """Whether the setting is one of this method; those of the recipe are everybody's."""
    section, _, key = assignment.partition("=")[0].partition(".")
    if section != "method":
        if section != "training" or key not in Recipe.model_fields:
            raise ConfigError(f"'{assignment}': " + unknown("setting to vary", key, Recipe.model_fields))
        return True
    return key in find_method(config.method["name"]).model_fields


def _trials(tuned: Tuned, values: dict[str, Any], data_dir: Path | None, workers: int | None) -> Iterator[Trial]:
    library("optuna", "tune")  # before the first trial, and not after it
    known = _read(tuned)
    for number in range(tuned.budget.trials):
        if number == len(known):
            params = _proposed(tuned, known) if number else _defaults(tuned, values)
            known.append(_carry_out(tuned, values, number, params, data_dir, workers))
            _append(tuned, known[number])
        yield known[number]


def _proposed(tuned: Tuned, known: Sequence[Trial]) -> dict[str, Value]:
    """What to try next: a pure function of what is known, so that an interruption makes no difference."""
    optuna = library("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    stream = stream_seed(tuned.budget.seed, f"tune {tuned.method} {len(known)}") % 2**32
    study = optuna.create_study(
        direction="maximize" if METRICS[tuned.budget.by].higher else "minimize",
        sampler=optuna.samplers.TPESampler(seed=stream, n_startup_trials=STARTUP),
    )
    every = _distributions(optuna, tuned)
    for trial in known:
        if trial.value is not None:  # one that diverged tells Optuna nothing
            fitting = {key: d for key, d in every.items() if _inside(trial.params[key], tuned.space[key])}
            params = {key: trial.params[key] for key in fitting}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=fitting, value=trial.value))
    return dict(study.ask(every).params)


def _inside(value: Value, among: Range | Choice) -> bool:
    if isinstance(among, Choice):
        return value in among.values
    return isinstance(value, int | float) and among.low <= value <= among.high


def _distributions(optuna: Any, tuned: Tuned) -> dict[str, Any]:
    kinds = optuna.distributions

    def one(among: Range | Choice) -> Any:
        if isinstance(among, Choice):
            return kinds.CategoricalDistribution(among.values)
        if among.whole:
            return kinds.IntDistribution(int(among.low), int(among.high), log=among.log)
        return kinds.FloatDistribution(among.low, among.high, log=among.log)

    return {key: one(among) for key, among in tuned.space.items()}


def _defaults(tuned: Tuned, values: dict[str, Any]) -> dict[str, Value]:
    """What the config says of the settings that are searched."""
    config = prepared(values).model_dump(mode="json")
    found = {}
    for key, among in tuned.space.items():
        section, _, name = key.partition(".")
        value = config[section].get(name)
        middle = among.values[0] if isinstance(among, Choice) else math.sqrt(among.low * among.high)
        found[key] = middle if value is None else value
    return found


def _carry_out(
    tuned: Tuned,
    values: dict[str, Any],
    number: int,
    params: dict[str, Value],
    data_dir: Path | None,
    workers: int | None,
) -> Trial:
    for key, value in params.items():
        values = changed(values, key, value)
    config, folder = prepared(values), tuned.folder / f"trial-{number:03}"
    try:
        advance(config, folder, data_dir, workers=workers)
    except TrainingError as error:
        return Trial(number, params, None, None, folder.name, str(error))
    summary = RunStore(folder).read_json("summary.json")
    chosen = summary[summary["reported"]]["selected"]
    return Trial(number, params, float(chosen["value"]), int(chosen["round"]), folder.name)


# --- the record ---------------------------------------------------------------------------------------------------


def _header(tuned: Tuned) -> dict[str, Any]:
    """What a later call must agree with, to go on: all but the number of trials."""
    space = {key: str(among) for key, among in tuned.space.items()}
    budget = {key: value for key, value in asdict(tuned.budget).items() if key != "trials"}
    return {"method": tuned.method, "space": space, "budget": budget}


def _read(tuned: Tuned) -> list[Trial]:
    path = tuned.folder / TRIALS
    if not path.exists():
        return []
    try:
        text = path.read_text()
        header, *lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        found = [Trial(**line) for line in lines]
    except (OSError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): restore it, or choose a new folder") from None
    if header != json.loads(json.dumps(_header(tuned))):
        raise RunError(f"{tuned.folder} was tuned with different settings or a different budget: choose a new folder")
    return found


def _append(tuned: Tuned, trial: Trial) -> None:
    path = tuned.folder / TRIALS
    with explained(tuned.folder):
        tuned.folder.mkdir(parents=True, exist_ok=True)
        before = path.read_text() if path.exists() else json.dumps(_header(tuned)) + "\n"
        whole = before[: before.rfind("\n") + 1]  # without a line that was cut off
        write_atomically(path, (whole + json.dumps(asdict(trial)) + "\n").encode())


def _write(tuned: Tuned, values: dict[str, Any]) -> None:
    """best.toml, to be run with any seed; tuning.json, which names all trials and the budget."""
    best = tuned.best
    for key, value in best.params.items():
        values = changed(values, key, value)
    about = {
        **_header(tuned),
        "budget": asdict(tuned.budget),
        "best": asdict(best),
        "trials": [asdict(trial) for trial in tuned.trials],
        **{key: value for key, value in provenance().items() if key in ("command", "commit", "versions")},
    }
    with explained(tuned.folder):
        write_atomically(tuned.folder / "best.toml", prepared(values).to_toml().encode())
        write_atomically(tuned.folder / "tuning.json", (json.dumps(about, indent=2) + "\n").encode())
