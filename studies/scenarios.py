"""Draws docs/img/scenarios.png and docs/img/scenarios-many.png: who holds what in each scenario.

`python studies/scenarios.py [WRITERS.npz]`, where the file has handwriting with a writer for each sample (FEMNIST)
for a panel of the natural scenario; left out without it.
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedpac.data.clients import Scenario
from fedpac.data.config import DataConfig
from fedpac.data.scenario import build, describe
from fedpac.report.bubbles import bubble_plots, bubbles
from fedpac.report.style import save, style

SHOWN: dict[str, dict[str, object]] = {
    "groups, s = 20 %": {"scenario": "groups"},
    "groups, s = 80 %": {"scenario": "groups", "s": 80},
    "imbalanced": {"scenario": "imbalanced"},
    "iid": {"scenario": "iid"},
    "pathological, random": {"scenario": "pathological"},
    "pathological, clustered": {"scenario": "pathological", "allocation": "clustered"},
    "dirichlet, beta = 1.0": {"scenario": "dirichlet", "samples": 600},
    "concept-shift: labels as the clients see them": {"scenario": "concept-shift"},
}


def made(**keys: object) -> Scenario:
    return build(DataConfig.model_validate({"dataset": "fashion-mnist", **keys}), seed=0)


def held(scenario: Scenario) -> tuple[NDArray[np.int64], list[int | None]]:
    return describe(scenario).numpy(), [client.group for client in scenario.clients]


def many(writers: Path | None) -> Figure:
    """The scenarios with many clients, and the one that bubbles cannot show."""
    layout: Any = [["dirichlet", "dirichlet"], ["scarce", "scarce"], ["natural" if writers else "turned", "turned"]]
    heights = [3.6, 3.6, 9.0 if writers else 5.0]
    figure, axes = plt.subplot_mosaic(
        layout, figsize=(16, sum(heights)), height_ratios=heights, width_ratios=[5, 4], layout="constrained"
    )
    panel(axes["dirichlet"], "dirichlet, beta = 1.0", made(scenario="dirichlet"), 0.22)
    panel(axes["scarce"], "scarce", made(scenario="scarce"), 0.24)
    if writers:
        by_writer = build(DataConfig(scenario="natural", path=writers), seed=0)
        panel(axes["natural"], "natural, by writer: 10 digits, 26 capitals, 26 small letters", by_writer, 0.18)
    images(axes["turned"], made(scenario="feature-skew"), 4 if writers else 16)
    return figure


def panel(axes: Axes, title: str, scenario: Scenario, cell: float) -> None:
    """cell: inches for the largest bubble; it may cover its neighbours a little, most are far smaller."""
    counts, groups = held(scenario)
    bubbles(axes, counts, title, groups, 72 * cell)


def images(axes: Axes, scenario: Scenario, shown: int) -> None:
    """The first images of the first client of each group, as the client sees them."""
    groups = {client.group for client in scenario.clients}
    firsts = [client.train for client in scenario.clients[: len(groups)]]
    rows = []
    for part in firsts:
        x = part.tensors()[0][:shown, 0]
        rows.append(torch.cat(list(F.pad(x, (1, 1, 1, 1), value=torch.nan)), dim=1))  # a white frame for each
    axes.imshow(torch.cat(rows), cmap="gray", interpolation="nearest")
    side = rows[0].shape[0]
    axes.set_yticks(
        [side * (g + 0.5) for g in range(len(rows))],
        [f"group {g}\n{part.rotate:.0f}°" for g, part in enumerate(firsts)],
    )
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=9)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_anchor("N")
    axes.set_title("feature-skew: the first images of each group's first client", loc="left")


if __name__ == "__main__":
    few = {title: held(made(clients=20, **keys)) for title, keys in SHOWN.items()}
    with style():
        save(bubble_plots(few, columns=2), Path("docs/img/scenarios.png"), colours=128)
        save(many(Path(sys.argv[1]) if sys.argv[1:] else None), Path("docs/img/scenarios-many.png"), colours=128)
