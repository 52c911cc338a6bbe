"""What figures show, as plain numbers: found out of runs here, drawn elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedpac.errors import RunError
from fedpac.methods.base import Which
from fedpac.runs.run_data import Floats, RunData
from fedpac.runs.seeds import setting_title

PAPER_ROUNDS: tuple[int, ...] = (1, 20, 50)  # of its heat map
MOST_CLIENTS = 1000  # in a heat map: more than its picture has points


def curve_of(runs: Sequence[RunData], which: Which, alone: bool) -> tuple[list[int], Floats, Floats | None]:
    """Rounds, means and their spread: accuracy in per cent, R² as it is."""
    rounds = sorted(set.intersection(*(set(run.accuracy[which]) for run in runs)))
    if not rounds:
        raise RunError("these runs share no evaluated round")
    factor = runs[0].headline.factor
    means = np.array([[factor * run.means[which][t] for t in rounds] for run in runs])
    if len(runs) > 1:
        return rounds, means.mean(axis=0), means.std(axis=0, ddof=1)
    spread = np.array([factor * runs[0].scored(which, t).std() for t in rounds]) if alone else None
    return rounds, means[0], spread


@dataclass(frozen=True)
class Line:
    """One method's accuracy over rounds, over all its seeds."""

    label: str
    method: str
    which: Which
    seeds: int
    rounds: list[int]
    means: Floats
    band: Floats | None  # standard deviation over seeds

    @classmethod
    def of(cls, label: str, method: str, runs: Sequence[RunData], which: Which) -> Self:
        return cls(label, method, which, len(runs), *curve_of(runs, which, alone=False))


@dataclass(frozen=True)
class Dot:
    label: str
    ours: Floats  # one for each seed
    paper: float | None
    marked: bool = False  # stands out from the others


@dataclass(frozen=True)
class Sweep:
    """One method's final accuracy over something that was varied."""

    label: str
    method: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class HeatMaps:
    """Who gave which weight to whom in one run, in several rounds. Clients are ordered by group, so that collaboration
    inside groups shows as blocks along the diagonal."""

    title: str
    clients: list[int]
    edges: list[float]  # between groups
    matrices: dict[int, Floats]  # by round

    @classmethod
    def of(cls, run: RunData, title: str = "") -> Self:
        rounds, order = heatmap_rounds(run), by_group(run)
        if len(order) > MOST_CLIENTS:
            taking_part = run.peer_weights.present(rounds)
            order = [i for i in order if i in taking_part][:MOST_CLIENTS]
        matrices = {t: run.peer_weights.among(order, t) for t in rounds}
        return cls(title, order, _group_edges([run.groups[i] for i in order]), matrices)


def heatmap_title(method: str, run: RunData) -> str:
    grouped = any(group is not None for group in run.groups)
    shown = f"; at most {MOST_CLIENTS:,} of those who took part" if len(run.sizes) > MOST_CLIENTS else ""
    return f"{method}, {setting_title([run])}" + ("; clients ordered by group" if grouped else "") + shown


def heatmap_rounds(run: RunData) -> list[int]:
    """The paper's 1, 20 and 50, or the first, middle and last of a shorter run."""
    known = sorted(run.peer_weights)
    if not known:
        raise RunError(f"{run.path}: {run.title} records no weights between clients")
    paper: list[int] = [t for t in PAPER_ROUNDS if t in run.peer_weights]
    return paper if len(paper) == len(PAPER_ROUNDS) else sorted({known[0], known[len(known) // 2], known[-1]})


def by_group(run: RunData) -> list[int]:
    return sorted(range(len(run.sizes)), key=lambda i: (-1 if run.groups[i] is None else run.groups[i], i))


def _group_edges(groups: Sequence[int | None]) -> list[float]:
    return [i - 0.5 for i in range(1, len(groups)) if groups[i] != groups[i - 1]]
