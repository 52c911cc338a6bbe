"""Reads run folders, and finds out which of them are seeds of one experiment.

Everything is computed from the folder's CSV files, so an unfinished run can be looked at too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpac.config import make_config
from fedpac.config_values import read_config
from fedpac.errors import ConfigError, NotEvaluatedError, RunError
from fedpac.headlines import HEADLINES, Headline
from fedpac.methods import list_methods
from fedpac.methods.base import Which
from fedpac.metrics import METRICS
from fedpac.runs.folder import RunStore
from fedpac.selection import Selection
from fedpac.strict import shown

Floats: TypeAlias = NDArray[np.float64]
When: TypeAlias = Literal["final", "selected", "best"]  # the last, by validation data, by test data
Scores: TypeAlias = dict[tuple[str, str, str], dict[int, dict[int, float]]]
SPLITS: tuple[Which, Which] = ("received", "personal")
STATED = {  # what is read of a config, whatever version wrote it
    "method.name": str, "model": str, "data.dataset": str, "data.scenario": str, "training": dict, "run.seed": int,
    "run.rounds": int,
}  # fmt: skip
LONGEST_NOTE = 1_000  # characters
LONG = 40  # characters of a name that say what is different about a run


@dataclass(frozen=True)
class ClientFailure:
    round: int
    client: int
    cause: str
    reason: str


@dataclass(frozen=True, eq=False)
class RunData:
    """One run as read from its folder."""

    path: Path
    config: dict[str, Any]
    title: str
    reported: Which
    note: str  # "stand-in: ..." where the numbers may not be set beside published ones
    names: list[str]  # of the clients
    sizes: Floats  # training samples of every client
    test_sizes: Floats  # held-out samples
    groups: list[int | None]
    class_counts: NDArray[np.int64]  # training samples of each class (columns) for each client (rows)
    accuracy: dict[Which, dict[int, Floats]]  # split -> round -> accuracy of every client, NaN if it has none
    last_round: int
    seconds: float
    bytes_up: int
    bytes_down: int
    environment: dict[str, Any]
    metric: str = "accuracy"  # what `accuracy` holds: 'r2' where a number is predicted

    @property
    def headline(self) -> Headline:
        return HEADLINES[self.metric]

    @property
    def method(self) -> str:
        return str(self.config["method"]["name"])

    @property
    def dataset(self) -> str:
        return "own" if self.federated else str(self.config["data"]["dataset"])

    @property
    def scenario(self) -> str:
        return "the sites' own data" if self.federated else f"{self.dataset} {self.config['data']['scenario']}"

    @property
    def federated(self) -> bool:
        """Whether the clients were real sites, whose data only they have."""
        return "federation" in self.config

    @property
    def seed(self) -> int:
        return int(self.config["run"]["seed"])

    @property
    def wanted_rounds(self) -> int:
        return int(self.config["run"]["rounds"])

    @property
    def finished(self) -> bool:
        return self.last_round >= self.wanted_rounds or self.stopped_early

    @property
    def stopped_early(self) -> bool:
        """Whether validation data ended the run."""
        patient = self.config["run"].get("patience") is not None
        return patient and self.last_round < self.wanted_rounds and RunStore(self.path).finished

    @cached_property
    def scores(self) -> "Scores":
        """(split, part, metric) -> round -> client -> value: what was measured beside accuracy and loss."""
        found: Scores = {}
        if not (self.path / "scores.csv").exists():
            return found
        try:
            for row in RunStore(self.path).rows("scores.csv"):
                t, client, value = _count(row["round"]), int(row["client"]), float(row["value"])
                if row["split"] not in SPLITS or not 0 <= client < len(self.sizes):
                    raise ValueError(f"round {t}: there is no client {client} with the split '{row['split']}'")
                key = (row["split"], row["part"], row["metric"])
                found.setdefault(key, {}).setdefault(t, {})[client] = value
        except (ValueError, LookupError) as error:
            raise RunError(f"{self.path / 'scores.csv'} is damaged: {error}") from None
        return found

    def selection(self, which: Which) -> Selection | None:
        """The rounds that validation data can choose from; None where there are no such data."""
        by = self.config["run"].get("select_by") or self.metric
        seen = self.scores.get((which, "validation", by)) if by in METRICS else None
        if not seen:
            return None
        selection = Selection(by)
        for t, values in seen.items():
            if t in self.accuracy[which]:
                selection.see(t, values)
        return selection if selection.seen else None

    def stages(self, which: Which) -> list[When]:
        """The rounds that a result can be stated of."""
        return ["final", "best"] if self.selection(which) is None else ["final", "selected", "best"]

    @cached_property
    def peer_weights(self) -> "PeerWeights":
        given: dict[int, list[tuple[int, int, float]]] = {}
        clients = set(range(len(self.sizes)))
        try:
            kept = (self.path / "weights.csv").exists()  # it may have been left out of what was committed
            for row in RunStore(self.path).rows("weights.csv") if kept else []:
                i, j = int(row["client"]), int(row["peer"])
                if not {i, j} <= clients:
                    raise ValueError(f"there is no client {min({i, j} - clients)}")
                given.setdefault(int(row["round"]), []).append((i, j, float(row["weight"])))
        except (ValueError, LookupError) as error:
            raise RunError(f"{self.path / 'weights.csv'} is damaged: {error}") from None
        return PeerWeights(len(self.sizes), given)

    @cached_property
    def failures(self) -> list[ClientFailure]:
        """Who did not answer, in which round and why."""
        if not (self.path / "failures.csv").exists():
            return []
        try:
            return [
                ClientFailure(int(row["round"]), int(row["client"]), row["cause"], row["reason"])
                for row in RunStore(self.path).rows("failures.csv")
            ]
        except (ValueError, LookupError) as error:
            raise RunError(f"{self.path / 'failures.csv'} is damaged: {error}") from None

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """What the summary of a finished run states (epsilon, guarantee, encryption); empty where there is nothing."""
        store = RunStore(self.path)
        stated = store.read_json("summary.json").get("privacy") if store.finished else None
        return stated if isinstance(stated, dict) else {}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that a result depends on but the seed: 'method.lam', 'data.s', ..."""
        try:
            config = make_config(self.config, import_own=False).model_dump(mode="json")  # with younger settings, too
        except ConfigError:
            config = self.config  # of a version that had other ones
        sections = {k: config[k] for k in ("method", "federation" if self.federated else "data", "training")}
        sections["run"] = {k: v for k, v in config["run"].items() if k in ("rounds", "participation", "patience")}
        sections["wire"] = config.get("wire", {})
        flat = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
        return {**flat, "model": config["model"], "note": self.note}

    @cached_property
    def means(self) -> dict[Which, dict[int, float]]:
        """Split -> round -> accuracy, mean over clients."""
        return {
            which: {t: float(self.scored(which, t).mean()) for t in rounds} for which, rounds in self.accuracy.items()
        }

    def scored(self, which: Which, round: int) -> Floats:
        """The accuracies of that round, of the clients that have one."""
        each = self.accuracy[which][round]
        return each[~np.isnan(each)]

    @property
    def splits(self) -> list[Which]:
        """Which accuracies were measured at all."""
        return [which for which in SPLITS if self.accuracy[which]]

    @property
    def shown(self) -> Which:
        """The reported accuracy, or the other one if that was not measured."""
        return self.reported if self.accuracy[self.reported] else self.splits[0]

    def evaluated_round(self, which: Which, when: When) -> int:
        means = self.means[which]
        if when == "selected":
            selection = self.selection(which)
            if selection is None or selection.best is None:
                raise RunError(f"{self.path} has no validation data to select a round: set data.validation_share")
            return selection.best
        return max(means) if when == "final" else max(means, key=lambda t: (means[t], -t))


class PeerWeights(Mapping[int, Floats]):
    """Round -> matrix: row i holds the weights that client i gives to all clients.

    A matrix is made when it is asked for, of some clients only if need be: those of all rounds of a thousand clients
    would take gigabytes, as would one of a hundred thousand.
    """

    def __init__(self, clients: int, given: Mapping[int, Sequence[tuple[int, int, float]]]) -> None:
        self._clients, self._given = clients, given

    def __getitem__(self, round: int) -> Floats:
        return self.among(range(self._clients), round)

    def among(self, clients: Sequence[int], round: int) -> Floats:
        """The matrix of these clients, in this order."""
        place = {client: at for at, client in enumerate(clients)}
        matrix = np.zeros((len(clients), len(clients)))
        for i, j, weight in self._given[round]:
            if i in place and j in place:
                matrix[place[i], place[j]] = weight
        return matrix

    def present(self, rounds: Sequence[int]) -> set[int]:
        """Who gave or was given a weight in one of these rounds."""
        return {client for t in rounds for i, j, _ in self._given[t] for client in (i, j)}

    def __contains__(self, round: object) -> bool:
        return round in self._given

    def __iter__(self) -> Iterator[int]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def read_run(path: Path) -> RunData:
    """A run's folder, finished or not, with at least one evaluated round."""
    store = RunStore.open(path)
    config = read_config(path / "config.toml")
    environment = store.read_json("environment.json") if (path / "environment.json").exists() else {}
    try:
        _check_stated(config)
        title, reported = _title_and_reported(config["method"]["name"], store, environment)
        clients = store.rows("clients.csv")
        if [int(row["client"]) for row in clients] != list(range(len(clients))):
            raise ValueError("clients.csv does not list the clients 0, 1, ... in order")
        sizes, test_sizes = (np.array([_count(row[key]) for row in clients], dtype=float) for key in ("train", "test"))
        groups = [int(row["group"]) if row["group"] else None for row in clients]
        counts = np.array([[_count(v) for k, v in row.items() if k.startswith("class_")] for row in clients])
        rounds = store.rows("rounds.csv")
        seconds = sum(_seconds(row["seconds"]) for row in rounds)
        up, down = (sum(_count(row[key]) for row in rounds) for key in ("bytes_up", "bytes_down"))
        complete = 0 if _all_present(store, config) else len(rounds)
        metric, accuracy = _accuracies(store, len(clients), complete)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read as a run: {error}") from None
    if not any(accuracy.values()):
        raise NotEvaluatedError(f"{path} has no evaluated round yet: continue it with 'fedpac resume {path}'")
    return RunData(
        path=path,
        config=config,
        title=title,
        reported=reported,
        note=str(environment.get("note", ""))[:LONGEST_NOTE],
        names=[row["name"] or f"client {i}" for i, row in enumerate(clients)],
        sizes=sizes,
        test_sizes=test_sizes,
        groups=groups,
        class_counts=counts,
        accuracy=accuracy,
        last_round=len(rounds),
        seconds=seconds,
        bytes_up=up,
        bytes_down=down,
        environment=environment,
        metric=metric,
    )


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**53:  # what a float can count to
        raise ValueError(f"{shown(number)} is not a count")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 1e12:  # NaN is neither
        raise ValueError(f"rounds.csv: {shown(text)} is not a number of seconds")
    return seconds


def _check_stated(config: dict[str, Any]) -> None:
    for key, kind in STATED.items():
        if key.startswith("data.") and "federation" in config:
            continue  # the data are the sites' own
        value: Any = config
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, kind):
            raise ValueError(f"config.toml lacks {key}")


def _title_and_reported(name: str, store: RunStore, environment: dict[str, Any]) -> tuple[str, Which]:
    """Of a method that is not fedpac's, what the run has recorded: reading a folder imports no code."""
    if method := list_methods().get(name):
        return method.title, method.reported
    recorded = environment.get("method") or (store.read_json("summary.json") if store.finished else {})
    return str(recorded.get("title", name)), "personal" if recorded.get("reported") == "personal" else "received"


def _all_present(store: RunStore, config: dict[str, Any]) -> bool:
    """Whether every client has a result in every evaluated round."""
    run = config["run"]
    sampled = run.get("evaluate_clients") is not None or run.get("evaluate_absentees") is False
    tolerant = run.get("min_replies") is not None  # a site that came late was never asked, and did not fail
    return not (sampled or tolerant or "federation" in config or (store.path / "failures.csv").exists())


def _accuracies(store: RunStore, clients: int, complete: int) -> tuple[str, dict[Which, dict[int, Floats]]]:
    """What models were judged by, 'accuracy' or 'r2', and split -> round -> that by client.

    Up to the round `complete`, clients may be absent. In later ones none may, but in the very last, which is left out
    then: a kill may have cut it off.
    """
    found: dict[Which, dict[int, dict[int, float]]] = {split: {} for split in SPLITS}
    rows, last = store.rows("metrics.csv"), 0
    metric = "r2" if rows and "r2" in rows[0] else "accuracy"
    for row in rows:
        which, t, client = row["split"], _count(row["round"]), int(row["client"])
        if which not in SPLITS or not 0 <= client < clients:
            raise ValueError(f"metrics.csv, round {t}: there is no client {client} with the split '{which}'")
        of_round = found[which].setdefault(t, {})
        if client in of_round:
            raise ValueError(f"metrics.csv, round {t}: client {client} occurs twice ({which})")
        of_round[client], last = float(row[metric]), max(last, t)
        if not HEADLINES[metric].least <= of_round[client] <= 1:  # NaN is neither
            raise ValueError(
                f"metrics.csv, round {t}: {of_round[client]} is not an {metric} (client {client}, {which})"
            )
    accuracy: dict[Which, dict[int, Floats]] = {split: {} for split in SPLITS}
    for which, rounds in found.items():
        for t, of_round in rounds.items():
            if t <= complete or len(of_round) == clients:
                accuracy[which][t] = np.array([of_round.get(i, np.nan) for i in range(clients)])
            elif t < last:
                lacking = next(i for i in range(clients) if i not in of_round)
                raise ValueError(f"metrics.csv, round {t}: client {lacking} is missing ({which})")
    return metric, accuracy


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
