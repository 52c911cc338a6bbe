"""The page of results: what the paper found, what the runs found, and how far they are apart."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpac.files import explained, write_changed
from fedpac.methods.base import Which
from fedpac.report.order import OURS, order_table
from fedpac.report.text import csv_text, markdown
from fedpac.runs.run_data import SPLITS
from fedpac.runs.summary import summarise
from fedpac.tables import RESULTS
from fedpac.tables.rows import FilledRow, FilledTable, Ground, named, stand_in
from fedpac.tables.spec import Experiment

PAGE_COLUMNS = {
    "method": "method",
    "paper": "paper %",
    "ours": "ours, final %",
    "difference": "ours - paper",
    "best": "best % (round)",
    "other": "the other accuracy, final %",
    "rounds": "rounds",
    "seeds": "seeds",
    "megabytes": "MB a round, up / down",
}

INTRODUCTION = """# Results

Made by `fedpac reproduce`; do not edit. Accuracy is the plain mean over all clients on their own test data. *Received*
is the model as it comes from the server, before local training, *personal* the model after it; each row says which one
it shows, the one that the method's paper reports, and gives the other one beside it. *Final* is the last round, as in
the paper's tables; *best* is the best evaluated round (a run's config says how often that is), chosen on test data and
so only there to show how much the choice of the round matters. With several seeds: mean ± standard deviation over
seeds. A difference in brackets is that of a run which has not reached its last round yet.

Every row is a run folder in [`{name}`]({path}) with its config, all clients' accuracies, command, commit and versions;
the CSV file of a table has all of it at full precision.
"""


def write_page(tables: Sequence[FilledTable], page: Path) -> None:
    """The page, and beside the runs a CSV file for each table. Figures are drawn by drawing.draw()."""
    with explained(page):
        page.parent.mkdir(parents=True, exist_ok=True)
        write_changed(page, page_text(tables, page).encode())
    for table in tables:
        if text := exact_text(table):
            with explained(table.root):
                write_changed(table.root / f"{table.experiment.name}.csv", text.encode())


def page_text(tables: Sequence[FilledTable], page: Path) -> str:
    root = tables[0].root  # all are of one folder of results
    where = os.path.relpath(root, page.parent)
    introduction = INTRODUCTION.format(name=root.resolve().name, path=Path(where).as_posix())
    parts = [introduction, order_table(tables), _contents(tables), *(_section(table, page) for table in tables)]
    return "\n".join(part for part in parts if part)


def exact_text(table: FilledTable) -> str:
    """The table's CSV file; empty if nothing has been run."""
    lines = [line for rows in table.rows.values() for row in rows for line in _exact(row, table.root)]
    return csv_text(lines, {key: key for key in lines[0]}) if lines else ""


def _contents(tables: Sequence[FilledTable]) -> str:
    lines = []
    for table in tables:
        experiment, count = table.experiment, table.status
        elsewhere = "" if table.root.name == RESULTS.name else f" --out {table.root}"
        status = f"{count['ended']} of {count.total()} runs"
        status += f", {count['begun']} more begun" if count["begun"] else ""
        status += f", {count['unusable']} unusable" if count["unusable"] else ""
        anchor = "".join(c for c in f"{experiment.title} {experiment.name}".lower() if c.isalnum() or c in " -")
        lines.append(
            f"| [{experiment.title}](#{anchor.replace(' ', '-')}) | {experiment.source} | "
            f"`fedpac reproduce {experiment.argument}{elsewhere}` | {status} |"
        )
    return "\n".join(["| what | in the paper | command | seed 0 |", "|---|---|---|---|", *lines]) + "\n"


def _section(table: FilledTable, page: Path) -> str:
    experiment = table.experiment
    parts = [f"## {experiment.title} (`{experiment.name}`)\n"]
    if experiment.source:
        parts.append(f"In the paper: {experiment.source}.\n")
    waiting = []
    for key, setting in experiment.settings.items():
        rows = table.rows[key]
        if any(row.runs for row in rows):
            parts += [f"### {named(setting, rows)}\n", setting_table(rows), *_remarks(rows)]
        else:
            waiting.append(setting.title)
    for image in figure_settings(experiment, page):
        if image.exists():
            parts.append(f"![{experiment.title}]({image.relative_to(page.parent).as_posix()})\n")
    if waiting:
        parts.append(f"Not run yet: {'; '.join(waiting)}.\n")
    return "\n".join(parts)


def setting_table(rows: Sequence[FilledRow]) -> str:
    """The rows of one setting. Where some lack rounds or seeds, a column compares all on what they share."""
    ran = [row for row in rows if row.runs]
    columns = dict(PAGE_COLUMNS)
    if stand_in(rows) or not any(row.paper is not None for row in rows):
        del columns["paper"], columns["difference"]
    shared = Ground.of(ran)
    if not all(row.finished and row.seeds == shared.seeds for row in ran):
        columns = {"method": columns.pop("method"), "shared": f"{shared} %", **columns}
        columns = {k: columns[k] for k in ("method", "paper", "shared", *columns) if k in columns}
    return markdown([_row(row, shared) for row in rows], columns)


def _row(filled: FilledRow, shared: Ground) -> dict[str, str]:
    paper = filled.paper
    row = dict.fromkeys([*PAGE_COLUMNS, "shared"], "")
    row |= {"method": filled.title, "paper": "" if paper is None else f"{paper:.2f}"}
    if not filled.runs:
        return row | {"ours": "its folder is unusable" if filled.unusable else "not run yet"}
    best, at = filled.best
    other: Which = "personal" if filled.which == "received" else "received"
    difference = "" if paper is None else f"{filled.final - paper:+.2f}"
    first = filled.runs[0]
    rounds = max(1, first.last_round)
    return row | {
        "shared": _spread(shared.of_row(filled)),
        "ours": f"{_spread(filled.at(filled.last))} {filled.which}"
        + ("" if filled.finished else f", round {filled.last}"),
        "difference": difference if filled.finished or not difference else f"({difference})",
        "best": f"{best:.2f} ({-at})",
        "other": f"{_spread(filled.at(filled.last, other))} {other}",
        "rounds": str(filled.last) if filled.finished else f"{filled.last} of {first.wanted_rounds}",
        "seeds": str(len(filled.runs))
        + (f", {len(filled.begun)} more begun" if filled.begun else "")
        + (f", {filled.unusable} unusable" if filled.unusable else ""),
        "megabytes": " / ".join(f"{total / rounds / 1e6:.1f}" for total in (first.bytes_up, first.bytes_down)),
    }


def _spread(values: np.ndarray[Any, Any]) -> str:
    return f"{values.mean():.2f}" + (f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else "")


def _remarks(rows: Sequence[FilledRow]) -> list[str]:
    """What to make of a table: whether it may be compared, and where FedPAC stands."""
    ran = [row for row in rows if row.runs]
    remarks = []
    if note := stand_in(rows):
        remarks.append(f"**Not the paper's data** ({note}): its numbers are not shown here, they are of other data.\n")
    others = any(row.method != OURS for row in ran)
    if any(row.row == OURS for row in ran) and others:
        ended = [row for row in ran if row.finished]
        if any(row.row == OURS for row in ended) and 1 < len(ended) < len(ran):
            remark = f"FedPAC is {_rank(ended)}; with the rows that are not finished, {_rank(ran)}."
        else:
            remark = f"FedPAC is {_rank(ran)}."
        papers = {row.row: row.paper for row in rows if row.paper is not None}
        if OURS in papers and not note:
            remark += (
                f" In the paper it is number {1 + sum(p > papers[OURS] for p in papers.values())} of {len(papers)}."
            )
        remarks.append(remark + "\n")
    return remarks


def _rank(rows: Sequence[FilledRow]) -> str:
    """Where FedPAC stands among the rows, on what they share."""
    shared = Ground.of(rows)
    scores = {row.row: float(shared.of_row(row).mean()) for row in rows}
    score = scores.pop(OURS)
    place = 1 + sum(other > score + 1e-9 for other in scores.values())  # equal means may differ in their last bits
    apart = abs(score - max(scores.values()))
    lead = f"{apart:.2f} points {'ahead of the next' if place == 1 else 'behind the first'}"
    return f"number {place} of {len(rows)} in {shared}, {lead if apart > 1e-9 else 'level with another'}"


def _exact(filled: FilledRow, root: Path) -> list[dict[str, str]]:
    """One line for each seed of a row, with where the numbers come from."""
    lines = []
    for run in sorted([*filled.runs, *filled.begun], key=lambda run: run.seed):
        summary, sessions = summarise(run), run.environment.get("sessions", [])
        line = {
            "setting": filled.setting,
            "row": filled.row,
            "title": filled.title,
            "seed": str(run.seed),
            "shows": filled.which,
            "paper": "" if filled.paper is None or run.note else str(filled.paper),
            "stand_in": run.note,
            "rounds": str(run.last_round),
            "of": str(run.wanted_rounds),
        }
        for which in SPLITS:
            for when in ("final", "best"):
                line |= {
                    f"{which}_{when}": repr(100 * summary[which][when]["mean"]),
                    f"{which}_{when}_round": str(summary[which][when]["round"]),
                }
        line |= {
            "seconds": str(summary["seconds"]),
            "bytes_up": str(summary["bytes_up"]),
            "bytes_down": str(summary["bytes_down"]),
            "folder": run.path.relative_to(root).as_posix(),
            "commands": " ; ".join(dict.fromkeys(session["command"] for session in sessions)),
            "commits": " ".join(dict.fromkeys(session["commit"] for session in sessions)),
            "versions": " ".join(f"{k}={v}" for k, v in sessions[-1]["versions"].items()) if sessions else "",
            "kernels": " ".join(dict.fromkeys(session["kernels"] for session in sessions)),
        }
        lines.append(line)
    return lines


def figure_settings(experiment: Experiment, page: Path) -> dict[Path, list[str]]:
    """The experiment's figures and the settings that each one shows. Heat maps are PNG, the others SVG: the smaller."""
    settings: dict[Path, list[str]] = {}
    suffix = "png" if experiment.shows == "weights" else "svg"
    for key, setting in experiment.settings.items():
        alone = experiment.shows in ("table", "curves")
        name = key.replace(",", "-") if alone else setting.data["dataset"]
        settings.setdefault(page.parent / "img" / "results" / f"{experiment.name}-{name}.{suffix}", []).append(key)
    return settings
