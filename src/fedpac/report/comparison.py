"""Runs side by side: a row for each experiment."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpac.errors import RunError
from fedpac.methods.base import Which
from fedpac.metrics import METRICS
from fedpac.report.text import rich_table
from fedpac.runs.run_data import SPLITS, Floats, RunData, When
from fedpac.runs.seeds import together
from fedpac.runs.summary import stage_scores, summarise

if TYPE_CHECKING:
    from rich.table import Table

COMPARISON_COLUMNS: dict[str, str] = {
    "method": "method",
    "data": "data",
    "rounds": "rounds",
    "seeds": "seeds",
    "reported": "reported",
    "received": "received %",
    "received_selected": "selected %",
    "received_best": "best %",
    "personal": "personal %",
    "personal_selected": "selected %",
    "personal_best": "best %",
    "worst": "worst tenth %",
    "wins": "beats Local-only %",
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
SELECTED_NOTE = (
    "Selected: test accuracy in the round selected on validation data. Best: of the best round on test data, which "
    "can only be known by looking at them."
)
WINS_NOTE = (
    "Beats Local-only: share of clients whose reported test accuracy is above that of their own Local-only model with "
    "the same data and seed, selected by validation data where there are any; equal ones count half."
)


def compare(runs: Sequence[RunData]) -> list[dict[str, str]]:
    """One row for each experiment; runs that differ in the seed alone are put together."""
    _check_alike(runs)
    alone = [run for run in runs if run.method == "local"]
    return [_row(name, same, alone) for name, same in together(runs).items()]


def _check_alike(runs: Sequence[RunData]) -> None:
    if not runs:
        raise RunError("there are no runs to compare")
    for run in runs:
        if run.metric != runs[0].metric:
            raise RunError(
                f"{runs[0].path} is judged by {runs[0].headline.title} and {run.path} by {run.headline.title}: they "
                "cannot be compared"
            )


def columns_of(rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The columns that any of the rows has something in."""
    unit = rows[0]["unit"] if rows else "%"
    return {key: of_unit(title, unit) for key, title in COMPARISON_COLUMNS.items() if any(row[key] for row in rows)}


def of_unit(title: str, unit: str) -> str:
    """A column's title, where accuracy may be another metric; a share of the clients stays one."""
    return title if title.startswith("beats") else title.replace("%", unit)


def win_rate(run: RunData, alone: Sequence[RunData]) -> float | None:
    """How many of the clients are better off than with a model of their own; None without a run to compare with."""
    same = [other for other in alone if other.seed == run.seed and _held(other) == _held(run)]
    if not same or run.method == "local":
        return None
    pair = (run, same[0])
    when: When = "selected" if all(one.selection(one.shown) is not None for one in pair) else "final"
    mine, theirs = (one.accuracy[one.shown][one.evaluated_round(one.shown, when)] for one in pair)
    both = ~np.isnan(mine) & ~np.isnan(theirs)
    return float(((mine > theirs) + 0.5 * (mine == theirs))[both].mean()) if both.any() else None


def _held(run: RunData) -> str:
    """What names the clients' data."""
    data = {key: value for key, value in run.settings.items() if key.startswith(("data.", "federation.", "note"))}
    return repr((data, run.environment.get("data")))


def _row(label: str, runs: list[RunData], alone: Sequence[RunData]) -> dict[str, str]:
    first = runs[0]
    row = {
        "method": label,
        "data": first.scenario + ("*" if first.note else ""),
        "rounds": "/".join(dict.fromkeys(_progress(run) for run in runs)),
        "seeds": ", ".join(str(run.seed) for run in runs),
        "reported": first.reported,
    }
    for which in SPLITS:
        there = [run for run in runs if run.accuracy[which]]
        show = first.headline.show
        row[which] = _spread([_scores(run, which, "final") for run in there], show)
        row[f"{which}_best"] = _spread([_scores(run, which, "best") for run in there], show)
        chosen = there and all(run.selection(which) is not None for run in there)
        row[f"{which}_selected"] = _spread([_scores(run, which, "selected") for run in there], show) if chosen else ""
    reported = [run for run in runs if run.accuracy[run.reported]]
    worst = [summarise(run)[run.reported]["final"]["worst_decile"] for run in reported]
    row["worst"] = first.headline.show(float(np.mean(worst)), 1) if worst else "-"
    row["unit"] = first.headline.unit
    rates = [rate for run in runs if (rate := win_rate(run, alone)) is not None]
    row["wins"] = f"{100 * np.mean(rates):.0f}" if rates else ""
    row["seconds"] = f"{np.mean([run.seconds for run in runs]):.1f}"
    row["up"] = f"{np.mean([run.bytes_up for run in runs]) / 1e6:.1f}"
    row["down"] = f"{np.mean([run.bytes_down for run in runs]) / 1e6:.1f}"
    return row


def _progress(run: RunData) -> str:
    return str(run.last_round) if run.finished else f"{run.last_round} of {run.wanted_rounds}"


def _scores(run: RunData, which: Which, when: When) -> Floats:
    return run.scored(which, run.evaluated_round(which, when))


def _spread(runs: list[Floats], show: Callable[[float], str]) -> str:
    """Over clients of the one run there is; else over runs, estimated as that of all seeds."""
    if not runs:
        return "-"
    if len(runs) == 1:
        return f"{show(float(runs[0].mean()))} ± {show(float(runs[0].std()))}"
    means = np.array([accuracies.mean() for accuracies in runs])
    return f"{show(float(means.mean()))} ± {show(float(means.std(ddof=1)))}"


def notes(runs: Sequence[RunData]) -> list[str]:
    """What a reader of the table has to be told."""
    counted = {run.path for same in together(runs).values() for run in same}
    left_out = [
        f"{run.path} is at round {_progress(run)} and was skipped, since other seeds of it are finished."
        for run in runs
        if run.path not in counted
    ]
    partial = [f"{run.path}: means are over the clients with a result, {n}." for run in runs if (n := _scored(run))]
    chosen = [SELECTED_NOTE] if any(run.selection(which) for run in runs for which in run.splits) else []
    alone = [run for run in runs if run.method == "local"]
    wins = [WINS_NOTE] if any(win_rate(run, alone) is not None for run in runs) else []
    named = [note.replace("accuracy", runs[0].headline.title) for note in (SPREAD_NOTE, *chosen, *wins)]
    return [
        *named,
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
            chosen = row[f"{which}_selected"]
            lines = [f"{row[which]} {mark}", *([f"selected {chosen.split()[0]}  "] if chosen else [])]
            short[which] = "\n".join([*lines, f"best {row[f'{which}_best'].split()[0]}  "])
        shown.append({**short, "bytes": f"{row['up']} / {row['down']}"})
    unit = rows[0]["unit"]
    columns = {key: COMPARISON_COLUMNS[key] for key in ("method", "data", "rounds", "seeds") if key not in shared}
    columns |= {"received": f"received {unit}", "personal": f"personal {unit}"}
    last = {
        "worst tenth": ("worst", f"worst\ntenth {unit}"),
        **({"beats Local-only": ("wins", "beats\nLocal %")} if any(row["wins"] for row in rows) else {}),
        "seconds": ("seconds", "seconds"),
        "MB": ("bytes", "MB\nup / down"),
    }
    columns |= dict(column for heading, column in last.items() if heading not in without)
    title = ", ".join(f"{key} {rows[0][key]}" if key != "data" else rows[0][key] for key in shared)
    return rich_table(shown, columns, title=title or None, left=["method", "data"])


def exact_rows(runs: Sequence[RunData]) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Every run's numbers at full precision, for a spreadsheet."""
    _check_alike(runs)
    rows = []
    alone = [run for run in runs if run.method == "local"]
    for run in runs:
        summary = summarise(run)
        row = {k: str(v) for k, v in summary.items() if not isinstance(v, dict | None)} | {"folder": str(run.path)}
        for which in run.splits:
            for when in run.stages(which):
                row |= {f"{which}_{when}_{k}": repr(v) for k, v in summary[which][when].items()}
                for part, metrics in summary.get("scores", {}).get(which, {}).get(when, {}).items():
                    for metric, over in metrics.items():
                        if isinstance(over, dict):
                            row |= {f"{which}_{when}_{part}_{metric}_{k}": repr(v) for k, v in over.items()}
        rate = win_rate(run, alone)
        rows.append(row | ({} if rate is None else {"beats_local": repr(rate)}))
    columns = {key: key for row in rows for key in row}
    return [{key: row.get(key, "") for key in columns} for row in rows], columns


# --- other metrics ------------------------------------------------------------------------------------------------

METRIC_COLUMNS = {
    "method": "method", "seed": "seed", "model": "model", "round": "round", "metric": "metric", "mean": "mean",
    "std": "± clients", "worst": "worst tenth", "weighted": "weighted", "clients": "clients",
}  # fmt: skip


def metric_rows(runs: Sequence[RunData]) -> list[dict[str, str]]:
    """What was measured beside accuracy: a row for each run and metric, of the model that its paper reports."""
    rows = []
    for label, same in together(runs).items():
        for run in same:
            which = run.shown
            for when in run.stages(which):
                parts = stage_scores(run, which, when) if when != "best" else {}
                for metric, over in parts.get("test", {}).items():
                    if not isinstance(over, dict):
                        continue
                    rows.append(
                        {
                            "method": label, "seed": str(run.seed), "model": f"{which}, {when}",
                            "round": str(run.evaluated_round(which, when)), "metric": metric,
                            "mean": f"{over['mean']:.4f}", "std": f"{over['std']:.4f}",
                            "worst": f"{over['worst_decile']:.4f}", "weighted": f"{over['weighted_mean']:.4f}",
                            "clients": str(over.get("clients", len(run.sizes))),
                        }
                    )  # fmt: skip
    return rows


def client_rows(runs: Sequence[RunData]) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Every client of every run: accuracy and what else was measured of the model that the method's paper reports, in
    the round that validation data chose, else in the last."""
    rows: list[dict[str, str]] = []
    for label, same in together(runs).items():
        for run in same:
            which = run.shown
            when: When = "selected" if run.selection(which) is not None else "final"
            t = run.evaluated_round(which, when)
            tested = {metric: rounds.get(t, {}) for (split, part, metric), rounds in run.scores.items()
                      if (split, part) == (which, "test") and metric in METRICS}  # fmt: skip
            for i, accuracy in enumerate(run.accuracy[which][t]):
                about = {"method": label, "seed": str(run.seed), "round": f"{t} ({when})", "client": run.names[i]}
                values = {run.metric: "–" if np.isnan(accuracy) else f"{accuracy:.4f}"}
                values |= {metric: f"{of[i]:.4f}" if i in of else "–" for metric, of in tested.items()}
                rows.append(about | values)
    columns = {key: key for row in rows for key in row}
    return [{key: row.get(key, "") for key in columns} for row in rows], columns
