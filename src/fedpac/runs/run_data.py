"""One run as read from its folder: what was run, what came out, and what can be asked of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpac.config import make_config
from fedpac.errors import ConfigError, RunError
from fedpac.headlines import HEADLINES, Headline
from fedpac.methods.base import Which
from fedpac.metrics import METRICS
from fedpac.runs.folder import RunStore
from fedpac.selection import Selection
from fedpac.strict import shown

Floats: TypeAlias = NDArray[np.float64]
When: TypeAlias = Literal["final", "selected", "best"]  # the last, by validation data, by test data
Scores: TypeAlias = dict[tuple[str, str, str], dict[int, dict[int, float]]]
SPLITS: tuple[Which, Which] = ("received", "personal")


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
                t, client, value = count(row["round"]), int(row["client"]), float(row["value"])
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


def count(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**53:  # what a float can count to
        raise ValueError(f"{shown(number)} is not a count")
    return number
