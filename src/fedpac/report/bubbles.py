"""Figures of what clients hold: a bubble for each client and class."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedpac.report.style import COLOURS

READABLE, SAMPLE = 100, 60  # clients in a figure: the most, and how many are drawn of more


def bubble_plot(counts: NDArray[np.int64], title: str, groups: Sequence[int | None] = ()) -> Figure:
    """How many training samples of each class (rows) each client (columns) holds: the area of a bubble."""
    return bubble_plots({title: (counts, groups)})


def bubble_plots(scenarios: Mapping[str, tuple[NDArray[np.int64], Sequence[int | None]]], columns: int = 1) -> Figure:
    """Several scenarios side by side; each has its own scale, told in its title."""
    clients = max(len(drawn_of(len(counts), groups)) for counts, groups in scenarios.values())
    classes = max(counts.shape[1] for counts, _ in scenarios.values())
    wide = float(np.clip(0.32 * clients + 1.6, 4.5, 16))
    tall = float(np.clip(0.30 * classes + 1.2, 3.0, 11))
    cell = min((wide - 1.6) / clients, (tall - 1.2) / classes) * 72  # points
    lines = -(-len(scenarios) // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(wide * columns, tall * lines), squeeze=False, layout="constrained"
    )
    for axes, (title, (counts, groups)) in zip(grid.flat, scenarios.items(), strict=False):
        bubbles(axes, counts, title, groups, cell)
    for axes in grid.flat[len(scenarios) :]:
        axes.set_visible(False)
    return figure


def bubbles(axes: Axes, counts: NDArray[np.int64], title: str, groups: Sequence[int | None], cell: float) -> None:
    """One scenario; `cell` is the room for a bubble in points. Of more clients than can be read, a sample is drawn."""
    drawn = drawn_of(len(counts), groups)
    everybody = drawn == list(range(len(counts)))
    label = "client" if everybody else f"{len(drawn)} of {len(counts):,} clients"
    counts = counts[drawn]
    clients, classes = counts.shape
    coloured = [(groups[i] if groups else None) or 0 for i in drawn]
    i, k = np.nonzero(counts)
    axes.scatter(
        i, k, s=(0.92 * cell) ** 2 * counts[i, k] / counts.max(),
        c=[COLOURS[coloured[j] % len(COLOURS)] for j in i], alpha=0.85, linewidths=0,
    )  # fmt: skip
    axes.set_xlim(-0.7, clients - 0.3)
    axes.set_ylim(-0.7, classes - 0.3)
    ticks = range(0, clients, max(1, round(clients / (25 if everybody else 15))))  # numbers of many clients are wide
    axes.set_xticks(ticks, [str(drawn[at]) for at in ticks])
    axes.set_yticks(range(0, classes, max(1, round(classes / 25))))
    axes.tick_params(labelsize=9)
    axes.set_xlabel(label + (", coloured by group" if len(set(coloured)) > 1 else ""))
    axes.set_ylabel("class")
    axes.set_title(f"{title}; largest bubble: {counts.max()} samples", loc="left")


def drawn_of(clients: int, groups: Sequence[int | None]) -> list[int]:
    """All clients if they can be read, else a sample that is evenly spaced in every group."""
    if clients <= READABLE:
        return list(range(clients))
    ordered = sorted(range(clients), key=lambda i: (groups[i] if groups else None) or 0)
    return sorted(ordered[at] for at in np.linspace(0, clients - 1, SAMPLE).round().astype(int))
