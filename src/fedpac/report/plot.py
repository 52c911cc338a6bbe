"""Curves in a terminal: a letter for each line, so that nothing depends on colour."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

Curve: TypeAlias = tuple[Sequence[float], Sequence[float]]  # x ascending, y


def plot_text(curves: Mapping[str, Curve], width: int, height: int, unit: str = "") -> list[str]:
    """Lines of text with an axis on the left and one below. Keys are the letters; the first is drawn on top."""
    ys = np.concatenate([np.asarray(y, dtype=float) for _, y in curves.values()])
    low, high = float(ys.min()), float(ys.max())
    first = min(min(x) for x, _ in curves.values())
    last = max(max(x) for x, _ in curves.values())
    span = high - low or 1.0
    grid = [[" "] * width for _ in range(height)]
    for letter, (x, y) in reversed(list(curves.items())):
        for column in range(width):
            at = first + (last - first) * column / max(1, width - 1)
            if min(x) <= at <= max(x):
                row = round((high - float(np.interp(at, x, y))) / span * (height - 1))
                grid[row][column] = letter
    labels = {0: f"{high:.0f}", height - 1: f"{low:.0f}", (height - 1) // 2: f"{(low + high) / 2:.0f}"}
    lines = [f"{labels.get(row, ''):>4} |{''.join(cells).rstrip()}" for row, cells in enumerate(grid)]
    ends = f"{first:g}", f"{last:g}"
    below = f"{ends[0]}{unit:^{max(1, width - len(ends[0]) - len(ends[1]))}}{ends[1]}"
    return [*lines, f"     +{'-' * width}", f"      {below}"]
