"""The figures of the page of results: which runs are drawn in which one."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from fedpac.runs import figures
from fedpac.runs.experiment import Experiment, Setting
from fedpac.runs.heatmaps import PAPER_ROUNDS, weight_heatmaps
from fedpac.runs.reading import stand_in_mark
from fedpac.runs.results import OURS, Ground, Outcome, figure_settings, named, outcomes, stand_in


def draw(experiment: Experiment, root: Path, page: Path) -> list[Path]:
    """The experiment's figures, as far as there are runs for them."""
    written: list[Path] = []
    for path, keys in figure_settings(experiment, page).items():
        found = {key: [o for o in outcomes(experiment, key, root) if o.runs] for key in keys}
        if found := {key: rows for key, rows in found.items() if rows}:
            written += _DRAW[experiment.shows](experiment, found, path)
    return written


def _draw_table(experiment: Experiment, found: dict[str, list[Outcome]], path: Path) -> list[Path]:
    ((key, rows),) = found.items()
    if len(rows) < 2:
        return []
    seeds = Ground.of(rows).seeds
    dots = []
    for row in (each.on(seeds) for each in rows):
        which = row.which if row.finished else f"{row.which}, round {row.last}"
        paper = None if stand_in(rows) else row.paper
        dots.append(figures.Dot(f"{row.title} ({which})", row.at(row.last), paper, row.row == OURS))
    furthest = Ground(seeds, max(row.on(seeds).last for row in rows))
    return figures.beside_paper(dots, f"{named(experiment.settings[key], rows)}, {furthest}", path)


def _draw_curves(experiment: Experiment, found: dict[str, list[Outcome]], path: Path) -> list[Path]:
    ((key, rows),) = found.items()
    lines = [figures.Line(row.title, row.method, row.runs, row.which) for row in rows]
    return figures.curves(lines, named(experiment.settings[key], rows), path)


def _draw_sweep(experiment: Experiment, found: dict[str, list[Outcome]], path: Path) -> list[Path]:
    every = [row for rows in found.values() for row in rows if row.finished]
    if not every:
        return []
    shared = Ground.of(every)  # a point that is a mean of more seeds than the others could not be compared
    points: dict[str, list[tuple[float, float]]] = {}
    for row in every:
        if (x := experiment.settings[row.setting].x) is not None and (point := row.on(shared.seeds)).runs:
            points.setdefault(row.row, []).append((x, point.final))
    if max(map(len, points.values()), default=0) < 2:
        return []
    named = {row.row: row for row in every}
    lines = [
        figures.Sweep(f"{named[key].title} ({named[key].which})", named[key].method, line)
        for key, line in points.items()
    ]
    title = _shared_title([experiment.settings[key] for key in found]) + stand_in_mark([stand_in(every)])
    return figures.sweep(lines, experiment.axis, f"{title}, {shared.named_seeds}", path)


def _shared_title(settings: Sequence[Setting]) -> str:
    """The words, between commas, with which all titles begin: 'CIFAR-10, 20 clients' of those with s = 0, 20, ... %."""
    parts = [setting.title.split(", ") for setting in settings]
    return ", ".join(some[0] for some in takewhile(lambda some: len(set(some)) == 1, zip(*parts, strict=False)))


def _draw_weights(experiment: Experiment, found: dict[str, list[Outcome]], path: Path) -> list[Path]:
    """In the paper's rounds; if no run has come that far, in those that there are."""
    (method,) = {row.title for rows in found.values() for row in rows}
    runs = {
        experiment.settings[key].title.rpartition(", ")[2]: row.runs[0]
        for key, (row,) in found.items()
        if row.runs[0].peer_weights
    }
    far = {title: run for title, run in runs.items() if set(PAPER_ROUNDS) <= set(run.peer_weights)}
    return weight_heatmaps(far or runs, method, path) if runs else []


_DRAW = {"table": _draw_table, "curves": _draw_curves, "sweep": _draw_sweep, "weights": _draw_weights}
