"""The figures, in one style: style.py has it, and writes them."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedpac.headlines import Headline
from fedpac.report.bubbles import bubble_plot
from fedpac.report.heatmaps import weight_heatmap, weight_heatmaps
from fedpac.report.shown import Dot, Line, Sweep, curve_of
from fedpac.report.style import COLOURS, LINES, looks, write_figure
from fedpac.runs.run_data import SPLITS, Floats, RunData
from fedpac.runs.seeds import setting_title, together

# --- accuracy over rounds -----------------------------------------------------------------------------------------


def accuracy_curves(runs: Sequence[RunData]) -> Figure:
    """Received (solid) and personal (dashed) accuracy over rounds, one colour per method.

    The reported one is drawn strong. Its band is the standard deviation over seeds where a method has several; for a
    run shown alone, over clients.
    """
    lines, headline = together(runs), runs[0].headline
    lowest, highest = headline.factor * headline.least, float(headline.factor)
    look = looks([same[0].method for same in lines.values()])
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    banded = ""
    for same, (colour, marker) in zip(lines.values(), look, strict=True):
        for which in SPLITS:
            measured = [run for run in same if run.accuracy[which]]
            if not measured:
                continue
            rounds, means, band = curve_of(measured, which, alone=len(lines) == 1)
            reported = which == same[0].shown
            axes.plot(
                rounds, means, LINES[which], color=colour, marker=marker, markevery=max(1, len(rounds) // 8),
                markersize=5 if reported or len(rounds) == 1 else 0, linewidth=1.8 if reported else 1.1,
                alpha=1 if reported else 0.6,
            )  # fmt: skip
            if band is not None and reported:
                low, high = (np.clip(edge, lowest, highest) for edge in (means - band, means + band))
                axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
                banded = "seeds" if len(same) > 1 else "clients"
    axes.set_xlabel("communication round")
    _whole_rounds(axes)
    axes.set_ylabel(_mean_label(headline))
    axes.set_title(setting_title(runs), loc="left")
    axes.set_xlim(left=0)
    bottom, top = (float(limit) for limit in axes.viewLim.intervaly)
    axes.set_ylim(max(bottom, lowest), min(top, 1.01 * highest))
    handles: list[Artist] = [
        Line2D([], [], color=colour, marker=marker, label=name)
        for name, (colour, marker) in zip(lines, look, strict=True)
    ]
    handles += [Line2D([], [], color="#555555", linestyle=LINES[which], label=which) for which in SPLITS]
    if banded:
        handles.append(_band(banded))
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, handlelength=2.6)
    return figure


def _mean_label(headline: Headline) -> str:
    unit = f" ({headline.unit})" if headline.factor > 1 else ""
    return f"test {headline.title}, mean over clients{unit}"


def _whole_rounds(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 2.5, 5, 10]))


def _band(over: str) -> Patch:
    return Patch(color="#555555", alpha=0.15, linewidth=0, label=f"± std over {over}")


LONG_CURVE = 20  # evaluated rounds


def curves(lines: Sequence[Line], title: str) -> Figure:
    """One line for each method, of the accuracy that it reports; the legend is in the order of the lines' ends."""
    figure, axes = plt.subplots(figsize=(7.2, 4.6))
    ends: list[tuple[float, Artist]] = []
    last = max(line.rounds[-1] for line in lines)
    for line, (colour, marker) in zip(lines, looks([line.method for line in lines]), strict=True):
        rounds, means, band = line.rounds, line.means, line.band
        label = f"{line.label} ({line.which}) {means[-1]:.1f}"
        label += f", round {rounds[-1]}" if rounds[-1] < last else ""
        label += f", {line.seeds} seeds" if line.seeds > 1 else ""
        (drawn,) = axes.plot(
            rounds, means, LINES[line.which], color=colour, marker=marker, markevery=max(1, len(rounds) // 8),
            label=label,
        )  # fmt: skip
        ends.append((float(means[-1]), drawn))
        if band is not None:
            axes.fill_between(rounds, means - band, means + band, color=colour, alpha=0.15, linewidth=0)
    each = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
    axes.set_xlabel("communication round")
    if min(map(len, each)) >= LONG_CURVE:  # the end is what one wants to see
        bottom = float(np.percentile(np.concatenate([line[1:] for line in each]), 2)) - 1
        axes.set_ylim(bottom, axes.dataLim.y1 + 1)
        if min(line.min() for line in each) < bottom:
            axes.set_xlabel("communication round; early rounds may lie below the figure")
    axes.set_xlim(left=0)
    _whole_rounds(axes)
    axes.set_ylabel("test accuracy, mean over clients (%)")
    axes.set_title(title, loc="left")
    handles = [drawn for _, drawn in sorted(ends, key=lambda end: -end[0])]
    if any(line.seeds > 1 for line in lines):
        handles.append(_band("seeds"))
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, handlelength=2.6)
    return figure


# --- beside the paper ---------------------------------------------------------------------------------------------


SPAN = 3.0  # points that the axis of a figure shows at least: less would make noise look like a result


def beside_paper(dots: Sequence[Dot], title: str) -> Figure:
    """Our accuracy (filled) and the paper's (a ring) of every method, the best of ours on top."""
    ordered = sorted(dots, key=lambda dot: float(dot.ours.mean()))
    compared = any(dot.paper is not None for dot in dots)
    seeds = max(len(dot.ours) for dot in dots)
    figure, axes = plt.subplots(figsize=(7.2, 1.3 + 0.3 * len(ordered)))
    for y, dot in enumerate(ordered):
        colour, ours = COLOURS[0] if dot.marked else COLOURS[1], float(dot.ours.mean())
        if len(dot.ours) > 1:
            axes.errorbar(ours, y, xerr=dot.ours.std(ddof=1), color=colour, capsize=3, linewidth=1.2, zorder=2)
        if dot.paper is not None:
            axes.plot([ours, dot.paper], [y, y], color="#BBBBBB", linewidth=1.4, zorder=1)
            axes.scatter([dot.paper], [y], s=80, facecolors="none", edgecolors=colour, linewidths=1.5, zorder=4)
        axes.scatter([ours], [y], s=26, color=colour, zorder=3)
        axes.annotate(f"{ours:.2f}", (1.01, y), xycoords=("axes fraction", "data"), va="center", fontsize=9)
    axes.set_yticks(range(len(ordered)), [dot.label for dot in ordered], fontsize=9)
    axes.set_ylim(-0.7, len(ordered) - 0.3)
    left, right = axes.get_xlim()
    if right - left < SPAN:
        axes.set_xlim((left + right - SPAN) / 2, (left + right + SPAN) / 2)
    axes.set_xlabel("test accuracy, mean over clients (%)")
    axes.set_title(title, loc="left")
    ours_are = "this project" + (", ± std over seeds" if seeds > 1 else "")
    handles = [Line2D([], [], linestyle="", marker="o", markersize=5, color="#555555", label=ours_are)]
    if compared:
        ring = Line2D([], [], linestyle="", marker="o", markersize=9, markeredgewidth=1.5, label="the paper")
        ring.set(markeredgecolor="#555555", markerfacecolor="none")
        handles.append(ring)
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.08, 1), borderaxespad=0, fontsize=9)
    return figure


def sweep(lines: Sequence[Sweep], axis: str, title: str) -> Figure:
    figure, axes = plt.subplots(figsize=(6.2, 4.2))
    for line, (colour, marker) in zip(lines, looks([line.method for line in lines]), strict=True):
        x, y = zip(*sorted(line.points), strict=True)
        axes.plot(x, y, color=colour, marker=marker, label=line.label)
    axes.set_xticks(sorted({x for line in lines for x, _ in line.points}))
    bottom, top = axes.get_ylim()
    if top - bottom < SPAN:
        axes.set_ylim((bottom + top - SPAN) / 2, (bottom + top + SPAN) / 2)
    axes.set_xlabel(axis)
    axes.set_ylabel("final test accuracy, mean over clients (%)")
    axes.set_title(title, loc="left")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    return figure


OF_THE_PAGE: dict[str, Callable[..., Figure]] = {
    "table": beside_paper,
    "curves": curves,
    "sweep": sweep,
    "weights": weight_heatmaps,
}  # by what an experiment shows


# --- how the clients fare -----------------------------------------------------------------------------------------


def client_strip(runs: Sequence[RunData]) -> Figure:
    """Every client's final reported accuracy, one row of dots per method, sorted by mean; a bar marks the mean."""
    lines, headline = together(runs), runs[0].headline
    colours = [colour for colour, _ in looks([same[0].method for same in lines.values()])]
    scores: dict[str, Floats] = {}
    for name, same in lines.items():
        split = same[0].shown
        finals = [run.scored(split, run.evaluated_round(split, "final")) for run in same if run.accuracy[split]]
        scores[f"{name} ({split})"] = headline.factor * np.concatenate(finals)
    ordered = sorted(scores, key=lambda name: float(scores[name].mean()))
    figure, axes = plt.subplots(figsize=(7.2, 1.1 + 0.55 * len(ordered)))
    for row, name in enumerate(ordered):
        values = np.sort(scores[name])
        colour = colours[list(scores).index(name)]
        axes.scatter(values, row + _beeswarm(values), s=22, color=colour, alpha=0.75, linewidths=0)
        axes.plot([values.mean()] * 2, [row - 0.33, row + 0.33], color="black", linewidth=1.6)
        mean = headline.show(values.mean() / headline.factor, 1)
        axes.annotate(mean, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=10)
    axes.annotate("mean", (1.01, len(ordered) - 0.45), xycoords=("axes fraction", "data"), fontsize=9)
    axes.set_yticks(range(len(ordered)), ordered)
    axes.set_ylim(-0.6, len(ordered) - 0.4)
    axes.grid(False, axis="y")
    unit = f" ({headline.unit})" if headline.factor > 1 else ""
    axes.set_xlabel(f"test {headline.title} of a client{unit}, last round")
    axes.set_title(setting_title(runs), loc="left", pad=14)
    return figure


def _beeswarm(values: Floats) -> Floats:
    """Small vertical steps that keep equal dots apart: the same for the same values, never random."""
    offsets = np.zeros(len(values))
    span = max(float(values.max() - values.min()), 1e-9)
    bins = np.round((values - values.min()) / span * 60)
    for place in np.unique(bins):
        at = np.flatnonzero(bins == place)
        gap = min(0.09, 0.6 / len(at))
        offsets[at] = gap * (np.arange(len(at)) - (len(at) - 1) / 2)
    return offsets


# --- all of a run, all of a comparison ----------------------------------------------------------------------------


def draw_run(run: RunData, folder: Path) -> list[Path]:
    """Every figure that a single run has."""
    written = write_figure(folder / run.metric, accuracy_curves, [run])
    written += write_figure(folder / "clients", client_strip, [run])
    if run.peer_weights:
        written += write_figure(folder / "weights", weight_heatmap, run)
    if len(run.sizes) > 1 and run.class_counts.shape[1]:
        written += write_figure(folder / "data", bubble_plot, run.class_counts, setting_title([run]), run.groups)
    return written


def draw_comparison(runs: Sequence[RunData], folder: Path) -> list[Path]:
    """The figures of each setting, and all settings in files of their own."""
    settings: dict[str, list[RunData]] = {}
    for run in runs:
        settings.setdefault(setting_title([run]), []).append(run)
    written: list[Path] = []
    for setting, same in settings.items():
        tail = "" if len(settings) == 1 else "-" + "-".join(re.findall(r"[\w.]+", setting))
        written += write_figure(folder / f"{same[0].metric}{tail}", accuracy_curves, same)
        written += write_figure(folder / f"clients{tail}", client_strip, same)
    return written
