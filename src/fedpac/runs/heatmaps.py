"""Who learns from whom: the weights that clients give each other, as a figure and for a terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from fedpac.errors import RunError
from fedpac.runs.reading import RunData, setting_title
from fedpac.runs.style import HEAT, save, style

PAPER_ROUNDS: tuple[int, ...] = (1, 20, 50)  # of its heat map


def weight_heatmap(run: RunData, path: Path) -> list[Path]:
    """The weights clients give each other, client by client, for several rounds side by side."""
    return weight_heatmaps({"": run}, run.title, path)


def weight_heatmaps(runs: Mapping[str, RunData], method: str, path: Path) -> list[Path]:
    """One line of heat maps for each run, one column for each round, all on one scale.

    Clients are ordered by group, so that collaboration inside groups shows as blocks along the diagonal.
    """
    panels = {
        title: {t: run.peer_weights[t][np.ix_(by_group(run), by_group(run))] for t in heatmap_rounds(run)}
        for title, run in runs.items()
    }
    top = max(float(matrix.max()) for line in panels.values() for matrix in line.values())
    columns = max(map(len, panels.values()))
    first = next(iter(runs.values()))
    with style():
        figure, grid = plt.subplots(
            len(runs), columns, squeeze=False, layout="constrained",
            figsize=(3.3 * columns + 1.1, 0.4 + 3.3 * len(runs)),
        )  # fmt: skip
        for line, (title, run) in enumerate(runs.items()):
            edges = _group_edges(sorted(run.groups, key=lambda g: -1 if g is None else g))
            for axes in grid[line][len(panels[title]) :]:
                axes.set_visible(False)
            for at, (axes, (t, matrix)) in enumerate(zip(grid[line], panels[title].items(), strict=False)):
                image = axes.imshow(matrix, cmap=HEAT, vmin=0, vmax=top, interpolation="nearest")
                axes.grid(False)
                axes.set_title(f"{title}, round {t}" if title else f"round {t}")
                if line == len(runs) - 1:
                    axes.set_xlabel("weight given to client")
                if at == 0:
                    axes.set_ylabel("receiving client")
                _client_ticks(axes, by_group(run), show_y=at == 0)
                for edge in edges:
                    axes.axhline(edge, color="white", linewidth=0.8)
                    axes.axvline(edge, color="white", linewidth=0.8)
                axes.spines[:].set_visible(False)
        figure.colorbar(image, ax=list(grid.flat), label="weight", shrink=0.85, aspect=20 * len(runs))
        grouped = any(group is not None for group in first.groups)
        figure.suptitle(
            f"{method}, {setting_title([first])}" + ("; clients ordered by group" if grouped else ""), fontsize=11
        )
        return save(figure, path)


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
