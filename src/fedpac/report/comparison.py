"""Runs side by side: a row for each experiment."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpac.errors import RunError
from fedpac.methods.base import Which
from fedpac.report.text import rich_table
from fedpac.runs.read import SPLITS, Floats, RunData, When, together
from fedpac.runs.summary import summarise

if TYPE_CHECKING:
    from rich.table import Table

COMPARISON_COLUMNS: dict[str, str] = {
    "method": "method",
    "data": "data",
    "rounds": "rounds",
    "seeds": "seeds",
    "reported": "reported",
    "received": "received %",
    "received_best": "best %",
    "personal": "personal %",
    "personal_best": "best %",
    "worst": "worst tenth %",
    "seconds": "seconds",
    "up": "MB up",
    "down": "MB down",
}
SPREAD_NOTE = (
    "Final test accuracy, mean ± standard deviation over clients (over seeds where there are several). "
    "Received: before local training; personal: after it; ◂ marks the one that the method's paper reports. "
    "Worst tenth: the mean of that accuracy over the worst tenth of the clients. "
    "Seconds and MB are those of a whole run."
)


def compare(runs: Sequence[RunData]) -> list[dict[str, str]]:
    """One row for each experiment; runs that differ in the seed alone are put together."""
    if not runs:
        raise RunError("there are no runs to compare")
    return [_row(name, same) for name, same in together(runs).items()]


def _row(label: str, runs: list[RunData]) -> dict[str, str]:
    first = runs[0]
    row = {
        "method": label,
        "data": first.scenario + ("*" if first.note else ""),
        "rounds": "/".join(dict.fromkeys(_progress(run) for run in runs)),
        "seeds": ", ".join(str(run.seed) for run in runs),
        "reported": first.reported,
    }
    for which in SPLITS:
        row[which] = _spread([_scores(run, which, "final") for run in runs if run.accuracy[which]])
        row[f"{which}_best"] = _spread([_scores(run, which, "best") for run in runs if run.accuracy[which]])
    reported = [run for run in runs if run.accuracy[run.reported]]
    worst = [summarise(run)[run.reported]["final"]["worst_decile"] for run in reported]
    row["worst"] = f"{100 * np.mean(worst):.1f}" if worst else "-"
    row["seconds"] = f"{np.mean([run.seconds for run in runs]):.1f}"
    row["up"] = f"{np.mean([run.bytes_up for run in runs]) / 1e6:.1f}"
    row["down"] = f"{np.mean([run.bytes_down for run in runs]) / 1e6:.1f}"
    return row


def _progress(run: RunData) -> str:
    return str(run.last_round) if run.finished else f"{run.last_round} of {run.wanted_rounds}"


def _scores(run: RunData, which: Which, when: When) -> Floats:
    return run.scored(which, run.evaluated_round(which, when))


def _spread(runs: list[Floats]) -> str:
    """Over clients of the one run there is; else over runs, estimated as that of all seeds."""
    if not runs:
        return "-"
    if len(runs) == 1:
        return f"{100 * runs[0].mean():.2f} ± {100 * runs[0].std():.2f}"
    means = np.array([accuracies.mean() for accuracies in runs])
    return f"{100 * means.mean():.2f} ± {100 * means.std(ddof=1):.2f}"


def notes(runs: Sequence[RunData]) -> list[str]:
    """What a reader of the table has to be told."""
    counted = {run.path for same in together(runs).values() for run in same}
    left_out = [
        f"{run.path} is at round {_progress(run)} and left out: other seeds of it are finished."
        for run in runs
        if run.path not in counted
    ]
    partial = [
        f"{run.path}: means are over the clients that have a result, {n}." for run in runs if (n := _scored(run))
    ]
    return [
        SPREAD_NOTE,
        *left_out,
        *partial,
        *dict.fromkeys(f"* {run.dataset}: {run.note}" for run in runs if run.note),
    ]


def _scored(run: RunData) -> str:
    """How many clients' results the last one is the mean of, where it is not all of them."""
    counts = {which: len(_scores(run, which, "final")) for which in run.splits}
    return ", ".join(f"{n} of {len(run.sizes)} ({which})" for which, n in counts.items() if n < len(run.sizes))


def comparison_table(rows: Sequence[Mapping[str, str]], without: Sequence[str] = ()) -> "Table":
    """The rows of `compare` narrow enough for a terminal: the best below the final, what all share in the title.

    without: columns by their headings, where even that is too wide.
    """
    shared = [key for key in ("data", "rounds", "seeds") if len({row[key] for row in rows}) == 1]
    shown = []
    for row in rows:
        short = dict(row)
        for which in SPLITS:
            mark = "◂" if row["reported"] == which else " "
            short[which] = f"{row[which]} {mark}\nbest {row[f'{which}_best'].split()[0]}  "
        shown.append({**short, "bytes": f"{row['up']} / {row['down']}"})
    columns = {key: COMPARISON_COLUMNS[key] for key in ("method", "data", "rounds", "seeds") if key not in shared}
    columns |= {"received": "received %", "personal": "personal %"}
    last = {
        "worst tenth": ("worst", "worst\ntenth %"),
        "seconds": ("seconds", "seconds"),
        "MB": ("bytes", "MB\nup / down"),
    }
    columns |= dict(column for heading, column in last.items() if heading not in without)
    title = ", ".join(f"{key} {rows[0][key]}" if key != "data" else rows[0][key] for key in shared)
    return rich_table(shown, columns, title=title or None, left=["method", "data"])


def exact_rows(runs: Sequence[RunData]) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Every run's numbers at full precision, for a spreadsheet."""
    rows = []
    for run in runs:
        summary = summarise(run)
        row = {k: str(v) for k, v in summary.items() if not isinstance(v, dict | None)} | {"folder": str(run.path)}
        for which in run.splits:
            for when in ("final", "best"):
                row |= {f"{which}_{when}_{k}": repr(v) for k, v in summary[which][when].items()}
        rows.append(row)
    if not rows:
        raise RunError("there are no runs to compare")
    columns = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key, "") for key in columns} for row in rows], {key: key for key in columns}
