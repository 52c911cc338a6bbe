"""Reads run folders, and finds out which of them are seeds of one experiment.

Everything is computed from the folder's CSV files, so an unfinished run can be looked at too.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpac.config import make_config, read_config
from fedpac.errors import ConfigError, NotEvaluatedError, RunError
from fedpac.methods import find_method
from fedpac.methods.base import Which
from fedpac.runs.store import RunStore

Floats: TypeAlias = NDArray[np.float64]
When: TypeAlias = Literal["final", "best"]
SPLITS: tuple[Which, Which] = ("received", "personal")
LONG = 40  # characters of a name that say what is different about a run


@dataclass(frozen=True, eq=False)
class RunData:
    """One run as read from its folder."""

    path: Path
    config: dict[str, Any]
    title: str
    reported: Which
    note: str  # "stand-in: ..." where the numbers may not be set beside published ones
    sizes: Floats  # training samples of every client
    groups: list[int | None]
    class_counts: NDArray[np.int64]  # training samples of each class (columns) for each client (rows)
    accuracy: dict[Which, dict[int, Floats]]  # split -> round -> accuracy of every client
    last_round: int
    seconds: float
    bytes_up: int
    bytes_down: int
    environment: dict[str, Any]

    @property
    def method(self) -> str:
        return str(self.config["method"]["name"])

    @property
    def dataset(self) -> str:
        return str(self.config["data"]["dataset"])

    @property
    def scenario(self) -> str:
        return f"{self.dataset} {self.config['data']['scenario']}"

    @property
    def seed(self) -> int:
        return int(self.config["run"]["seed"])

    @property
    def wanted_rounds(self) -> int:
        return int(self.config["run"]["rounds"])

    @property
    def finished(self) -> bool:
        return self.last_round >= self.wanted_rounds

    @cached_property
    def peer_weights(self) -> dict[int, Floats]:
        """Round -> matrix: row i holds the weights that client i gives to all clients."""
        n = len(self.sizes)
        matrices: dict[int, Floats] = {}
        try:
            for row in RunStore(self.path).rows("weights.csv"):
                matrix = matrices.setdefault(int(row["round"]), np.zeros((n, n)))
                matrix[int(row["client"]), int(row["peer"])] = float(row["weight"])
        except (TypeError, ValueError, IndexError) as error:
            raise RunError(f"{self.path / 'weights.csv'} is damaged: {error}") from None
        return matrices

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that a result depends on but the seed: 'method.lam', 'data.s', ..."""
        try:
            config = make_config(self.config).model_dump(mode="json")  # with settings that are younger than the run
        except ConfigError:
            config = self.config  # of a method that is not at hand here
        sections = {k: config[k] for k in ("method", "data", "training")}
        sections["run"] = {k: v for k, v in config["run"].items() if k in ("rounds", "participation")}
        flat = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
        return {**flat, "model": config["model"], "note": self.note}

    def evaluated_round(self, which: Which, when: When) -> int:
        rounds = self.accuracy[which]
        return max(rounds) if when == "final" else max(rounds, key=lambda t: (rounds[t].mean(), -t))


def read_run(path: Path) -> RunData:
    """A run's folder, finished or not, with at least one evaluated round."""
    store = RunStore.open(path)
    config = read_config(path / "config.toml")
    environment = store.read_json("environment.json") if (path / "environment.json").exists() else {}
    gathered: dict[Which, dict[int, list[float]]] = {split: {} for split in SPLITS}
    try:
        clients = store.rows("clients.csv")
        sizes = np.array([int(row["train"]) for row in clients], dtype=float)
        groups = [int(row["group"]) if row["group"] else None for row in clients]
        counts = np.array([[int(v) for k, v in row.items() if k.startswith("class_")] for row in clients])
        rounds = store.rows("rounds.csv")
        seconds = sum(float(row["seconds"]) for row in rounds)
        up, down = (sum(int(row[key]) for row in rounds) for key in ("bytes_up", "bytes_down"))
        for row in store.rows("metrics.csv"):
            which: Which = "received" if row["split"] == "received" else "personal"
            gathered[which].setdefault(int(row["round"]), []).append(float(row["accuracy"]))
        name = config["method"]["name"]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read as a run: {error}") from None
    accuracy = {
        split: {t: np.array(values) for t, values in rounds.items() if len(values) == len(clients)}
        for split, rounds in gathered.items()
    }
    if not all(accuracy.values()):
        raise NotEvaluatedError(f"{path} has no evaluated round yet: continue it with 'fedpac resume {path}'")
    try:
        cls = find_method(name)
        title, reported = cls.title, cls.reported
    except (ConfigError, AttributeError):  # a method of the user's own that is not at hand here
        title, reported = name, "received"
    return RunData(
        path=path,
        config=config,
        title=title,
        reported=reported,
        note=str(environment.get("note", "")),
        sizes=sizes,
        groups=groups,
        class_counts=counts,
        accuracy=accuracy,
        last_round=len(rounds),
        seconds=seconds,
        bytes_up=up,
        bytes_down=down,
        environment=environment,
    )


def read_runs(paths: Iterable[Path], skipped: Callable[[RunError], None] | None = None) -> list[RunData]:
    """All runs; a folder that holds no run but has runs in it stands for them.

    `skipped` is told of runs in such a folder that have only just begun; without it, one is an error.
    """
    found: dict[Path, RunData] = {}
    for path in paths:
        inside = sorted(p.parent for p in path.glob("[!.]*/config.toml"))
        alone = (path / "config.toml").is_file() or not inside
        for folder in [path] if alone else inside:
            try:
                found[folder] = read_run(folder)
            except NotEvaluatedError as error:
                if alone or skipped is None:
                    raise
                skipped(error)
    return list(found.values())


# --- seeds of one experiment --------------------------------------------------------------------------------------


def together(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Runs that differ in the seed alone, under a name that tells them from the others; of each, those that count."""
    groups: dict[tuple[str, int], list[RunData]] = {}
    for run in runs:
        key, copy = repr(run.settings), 0
        while any(other.seed == run.seed for other in groups.get((key, copy), [])):
            copy += 1  # the same seed once more is no further seed: it may be of other code or another machine
        groups.setdefault((key, copy), []).append(run)
    firsts = [same[0] for same in groups.values()]
    return {
        _name(same[0], [run for run in firsts if run.title == same[0].title]): counting(same)
        for same in groups.values()
    }


def counting(runs: list[RunData]) -> list[RunData]:
    """The runs that make up an experiment's numbers: an early round of one says nothing beside finished ones."""
    return [run for run in runs if run.finished] or runs


def _name(run: RunData, alike: Sequence[RunData]) -> str:
    """The method; where it was run in several ways, what is this one's own, or its folder where that is no help."""
    if len(alike) == 1:
        return run.title
    keys = dict.fromkeys(key for other in alike for key in other.settings)
    differing = [key for key in keys if len({repr(other.settings.get(key)) for other in alike}) > 1]
    short = {key: key.rpartition(".")[2] for key in differing}
    names = {key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()}

    def own(other: RunData) -> str:
        return ", ".join(f"{names[key]}={other.settings[key]}" for key in differing if key in other.settings)

    said = own(run)
    if len(said) > LONG or [own(other) for other in alike].count(said) > 1:
        tails = [["/".join(other.path.absolute().parts[-n:]) for other in alike] for n in range(1, 30)]
        said = next(tail for tail in tails if len(set(tail)) == len(tail))[alike.index(run)]
    return f"{run.title} ({said})" if said else run.title


def stand_in_mark(notes: Iterable[str]) -> str:
    """What follows a title wherever one of its runs is not on the published data."""
    return " (stand-in data)" if any(notes) else ""


def setting_title(runs: Sequence[RunData]) -> str:
    names = ", ".join(dict.fromkeys(f"{run.scenario}, {len(run.sizes)} clients" for run in runs))
    return names + stand_in_mark(run.note for run in runs)


# --- one run's result ---------------------------------------------------------------------------------------------


def describe(accuracies: Floats, sizes: Floats) -> dict[str, float]:
    """Mean and spread over clients. The plain mean counts every client equally, as the paper does."""
    values = np.sort(accuracies)
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "worst_decile": float(values[: max(1, len(values) // 10)].mean()),
        "weighted_mean": float(np.average(accuracies, weights=sizes)),
    }


def summarise(run: RunData) -> dict[str, Any]:
    results: dict[str, Any] = {
        which: {
            when: {"round": (t := run.evaluated_round(which, when)), **describe(run.accuracy[which][t], run.sizes)}
            for when in ("final", "best")
        }
        for which in SPLITS
    }
    return {
        "method": run.method,
        "title": run.title,
        "dataset": run.dataset,
        "scenario": run.scenario,
        "note": run.note,
        "clients": len(run.sizes),
        "rounds": run.last_round,
        "seed": run.seed,
        "reported": run.reported,
        **results,
        "seconds": round(run.seconds, 3),
        "bytes_down": run.bytes_down,
        "bytes_up": run.bytes_up,
    }
