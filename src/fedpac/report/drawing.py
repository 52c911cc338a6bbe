"""The figures of the page of results: which runs are shown in which one. Each is drawn only if that has changed."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedpac.report.order import OURS
from fedpac.report.page import figure_settings
from fedpac.report.shown import PAPER_ROUNDS, Dot, HeatMaps, Line, Sweep, heatmap_title
from fedpac.runs.seeds import stand_in_mark
from fedpac.tables.rows import FilledRow, FilledTable, Ground, named, stand_in
from fedpac.tables.spec import Experiment, Setting

LOOK = 1  # raise it when figures come to look different, and all are drawn again

Found: TypeAlias = dict[str, list[FilledRow]]  # the rows that have runs, by setting
Shown: TypeAlias = tuple[Any, ...]  # what the figure's function takes; empty if there is too little for a figure


def draw(table: FilledTable, page: Path) -> list[Path]:
    """Draw the table's figures, as far as there are runs for them; those that had to be drawn."""
    drawn: list[Path] = []
    for path, keys in figure_settings(table.experiment, page).items():
        found = {key: rows for key in keys if (rows := [row for row in table.rows[key] if row.runs])}
        shown = _SHOWN[table.experiment.shows](table.experiment, found) if found else ()
        if shown and not _has(path, mark := mark_of(shown)):
            from fedpac.report.figures import OF_THE_PAGE
            from fedpac.report.style import save, style

            with style():
                save(OF_THE_PAGE[table.experiment.shows](*shown), path, mark, colours=256)
            drawn.append(path)
    return drawn


def mark_of(shown: Shown) -> str:
    """Names what a figure shows. Every file has its mark in it, so that it is known whether it is still true."""
    return f"fedpac {hashlib.blake2b(repr((LOOK, _plain(shown))).encode(), digest_size=12).hexdigest()}"


def _plain(shown: Any) -> Any:
    """Numbers are taken to nine digits: the last bits of a mean may be another processor's."""
    if isinstance(shown, float):
        return f"{shown:.9g}"
    if isinstance(shown, np.ndarray):
        return _plain(shown.tolist())
    if is_dataclass(shown) and not isinstance(shown, type):
        return _plain(asdict(shown))
    if isinstance(shown, Mapping):
        return [(_plain(key), _plain(value)) for key, value in shown.items()]
    if isinstance(shown, Iterable) and not isinstance(shown, str):
        return [_plain(each) for each in shown]
    return shown


def _has(path: Path, mark: str) -> bool:
    return path.exists() and mark.encode() in path.read_bytes()


# --- what is shown ------------------------------------------------------------------------------------------------


def _table(experiment: Experiment, found: Found) -> Shown:
    ((key, rows),) = found.items()
    if len(rows) < 2:
        return ()
    seeds = Ground.of(rows).seeds
    dots = []
    for row in (each.on(seeds) for each in rows):
        which = row.which if row.finished else f"{row.which}, round {row.last}"
        paper = None if stand_in(rows) else row.paper
        dots.append(Dot(f"{row.title} ({which})", row.at(row.last), paper, row.row == OURS))
    furthest = Ground(seeds, max(row.on(seeds).last for row in rows))
    return dots, f"{named(experiment.settings[key], rows)}, {furthest}"


def _curves(experiment: Experiment, found: Found) -> Shown:
    ((key, rows),) = found.items()
    lines = [Line.of(row.title, row.method, row.runs, row.which) for row in rows]
    return lines, named(experiment.settings[key], rows)


def _sweep(experiment: Experiment, found: Found) -> Shown:
    every = [row for rows in found.values() for row in rows if row.finished]
    if not every:
        return ()
    shared = Ground.of(every)  # a point that is a mean of more seeds than the others could not be compared
    points: dict[str, list[tuple[float, float]]] = {}
    for row in every:
        if (x := experiment.settings[row.setting].x) is not None and (point := row.on(shared.seeds)).runs:
            points.setdefault(row.row, []).append((x, point.final))
    if max(map(len, points.values()), default=0) < 2:
        return ()
    named = {row.row: row for row in every}
    lines = [Sweep(f"{named[key].title} ({named[key].which})", named[key].method, line) for key, line in points.items()]
    title = _shared_title([experiment.settings[key] for key in found]) + stand_in_mark([stand_in(every)])
    return lines, experiment.axis, f"{title}, {shared.named_seeds}"


def _shared_title(settings: Sequence[Setting]) -> str:
    """The words, between commas, with which all titles begin: 'CIFAR-10, 20 clients' of those with s = 0, 20, ... %."""
    parts = [setting.title.split(", ") for setting in settings]
    return ", ".join(some[0] for some in takewhile(lambda some: len(set(some)) == 1, zip(*parts, strict=False)))


def _weights(experiment: Experiment, found: Found) -> Shown:
    """In the paper's rounds; if no run has come that far, in those that there are."""
    (method,) = {row.title for rows in found.values() for row in rows}
    runs = {
        experiment.settings[key].title.rpartition(", ")[2]: row.runs[0]
        for key, (row,) in found.items()
        if row.runs[0].peer_weights
    }
    far = {title: run for title, run in runs.items() if set(PAPER_ROUNDS) <= set(run.peer_weights)}
    if not (runs := far or runs):
        return ()
    return [HeatMaps.of(run, title) for title, run in runs.items()], heatmap_title(method, next(iter(runs.values())))


_SHOWN = {"table": _table, "curves": _curves, "sweep": _sweep, "weights": _weights}
