"""Who learns from whom: the weights that clients give each other, as a figure and for a terminal."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpac.report.shown import HeatMaps, by_group, heatmap_title
from fedpac.report.style import HEAT
from fedpac.runs.run_data import RunData


def weight_heatmap(run: RunData) -> Figure:
    """The weights clients give each other, client by client, for several rounds side by side."""
    return weight_heatmaps([HeatMaps.of(run)], heatmap_title(run.title, run))


def weight_heatmaps(runs: Sequence[HeatMaps], title: str) -> Figure:
    """One line of heat maps for each run, one column for each round, all on one scale."""
    top = max(float(matrix.max()) for run in runs for matrix in run.matrices.values())
    columns = max(len(run.matrices) for run in runs)
    figure, grid = plt.subplots(
        len(runs), columns, squeeze=False, layout="constrained", figsize=(3.3 * columns + 1.1, 0.4 + 3.3 * len(runs))
    )
    for line, run in enumerate(runs):
        for axes in grid[line][len(run.matrices) :]:
            axes.set_visible(False)
        for at, (axes, (t, matrix)) in enumerate(zip(grid[line], run.matrices.items(), strict=False)):
            image = axes.imshow(matrix, cmap=HEAT, vmin=0, vmax=top, interpolation="nearest")
            axes.grid(False)
            axes.set_title(f"{run.title}, round {t}" if run.title else f"round {t}")
            if line == len(runs) - 1:
                axes.set_xlabel("weight given to client")
            if at == 0:
                axes.set_ylabel("receiving client")
            _client_ticks(axes, run.clients, show_y=at == 0)
            for edge in run.edges:
                axes.axhline(edge, color="white", linewidth=0.8)
                axes.axvline(edge, color="white", linewidth=0.8)
            axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=list(grid.flat), label="weight", shrink=0.85, aspect=20 * len(runs))
    figure.suptitle(title, fontsize=11)
    return figure


def _client_ticks(axes: Axes, order: Sequence[int], show_y: bool = True) -> None:
    n = len(order)
    shown = range(n) if n <= 20 else range(0, n, max(1, round(n / 10)))
    names = [str(order[i]) for i in shown]
    size = 9 if len(shown) <= 10 else 7.5
    axes.set_xticks(list(shown), names, fontsize=size, rotation=90 if len(shown) > 10 else 0)
    axes.set_yticks(list(shown), names if show_y else [""] * len(names), fontsize=size)
    axes.tick_params(length=0)


def heatmap_text(run: RunData) -> list[str]:
    """The last round's matrix in block characters, two to a client, for a terminal."""
    matrix = run.peer_weights[max(run.peer_weights)]
    order = by_group(run)
    shades = " ░▒▓█"
    level = np.ceil(matrix / max(float(matrix.max()), 1e-12) * (len(shades) - 1) - 1e-9).astype(int)
    return ["".join(2 * shades[level[i, j]] for j in order) for i in order]
