"""The page of results: what the paper found, what the runs found, and how far they are apart."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedpac.errors import FedpacError
from fedpac.methods.base import Which
from fedpac.runs import RESULTS
from fedpac.runs.experiment import Experiment, Setting
from fedpac.runs.reading import SPLITS, RunData, counting, stand_in_mark, summarise
from fedpac.runs.reproduce import Cell, cells
from fedpac.runs.store import explained, write_atomically
from fedpac.runs.tables import csv_text, markdown

OURS = "fedpac"  # the row whose rank is told

COLUMNS = {
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


@dataclass(frozen=True)
class Outcome:
    """A row of the experiment in one setting, with the runs that count: one for each seed that is finished; as long as
    none is, one for each that has begun."""

    experiment: Experiment
    setting: str
    row: str
    runs: list[RunData]
    begun: list[RunData]  # further seeds, which are not finished yet
    unusable: int = 0  # folders that are damaged or hold another run

    @property
    def title(self) -> str:
        return self.experiment.title_of(self.row)

    @property
    def which(self) -> Which:
        return self.experiment.accuracy_of(self.row)

    @property
    def method(self) -> str:
        return self.experiment.method_of(self.row)

    @property
    def paper(self) -> float | None:
        return self.experiment.settings[self.setting].paper.get(self.row)

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def last(self) -> int:
        """The last round that has been evaluated with every seed."""
        return min(max(run.accuracy[self.which]) for run in self.runs)

    def at(self, round: int, which: Which | None = None) -> np.ndarray[Any, Any]:
        """Accuracy in per cent, for each seed."""
        return np.array([100 * run.accuracy[which or self.which][round].mean() for run in self.runs])

    @property
    def seeds(self) -> set[int]:
        return {run.seed for run in self.runs}

    def on(self, seeds: set[int]) -> "Outcome":
        """The same with some of the seeds."""
        return replace(self, runs=[run for run in self.runs if run.seed in seeds])

    @cached_property
    def final(self) -> float:
        return float(self.at(self.last).mean())

    @cached_property
    def best(self) -> tuple[float, int]:
        shared = set.intersection(*(set(run.accuracy[self.which]) for run in self.runs))
        return max((float(self.at(t).mean()), -t) for t in shared)


@dataclass(frozen=True)
class Ground:
    """What all rows have in common, so that they can be compared: seeds, and the last round that all have with them."""

    seeds: set[int]
    round: int

    @classmethod
    def of(cls, ran: Sequence[Outcome]) -> "Ground":
        each = [row.seeds for row in ran]
        seeds = set.intersection(*each) or set.union(*each)
        rounds = (set(run.accuracy[row.which]) for row in ran for run in row.on(seeds).runs)
        return cls(seeds, max(set.intersection(*rounds)))

    def __str__(self) -> str:
        return f"round {self.round}, {self.named_seeds}"

    @property
    def named_seeds(self) -> str:
        return f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, sorted(self.seeds)))}"

    def of_row(self, row: Outcome) -> np.ndarray[Any, Any]:
        return row.on(self.seeds).at(self.round)


def outcomes(experiment: Experiment, setting: str, root: Path) -> list[Outcome]:
    """Every row of one setting, with whatever has been run of it."""
    return [_outcome(experiment, setting, row, root) for row in experiment.methods]


def _outcome(experiment: Experiment, setting: str, row: str, root: Path) -> Outcome:
    runs: list[RunData] = []
    unusable = 0
    for cell in _found(experiment, setting, experiment.run_of(row), root):
        try:
            runs += [run] if (run := cell.read()) else []
        except FedpacError:  # `fedpac reproduce` says what is wrong with it
            unusable += 1
    counted = counting(runs)
    return Outcome(experiment, setting, row, counted, [run for run in runs if run not in counted], unusable)


def _found(experiment: Experiment, setting: str, run: str, root: Path) -> list[Cell]:
    """The cells of a row that have a folder, whichever seeds those are."""
    folder = Cell(experiment, setting, run, 0, root).folder
    endings = (path.name.removeprefix(f"{run}-seed") for path in folder.parent.glob(f"{run}-seed*"))
    return [Cell(experiment, setting, run, seed, root) for seed in sorted(int(e) for e in endings if e.isdecimal())]


# --- the page -----------------------------------------------------------------------------------------------------


def write_page(experiments: Sequence[Experiment], root: Path, page: Path) -> None:
    """The page, and beside the runs a CSV file for each experiment. Figures are drawn by drawing.draw()."""
    with explained(page):
        page.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(page, page_text(experiments, root, page).encode())
    for experiment in experiments:
        if text := exact_text(experiment, root):
            with explained(root):
                write_atomically(root / f"{experiment.name}.csv", text.encode())


def page_text(experiments: Sequence[Experiment], root: Path, page: Path) -> str:
    sections = [_section(experiment, root, page) for experiment in experiments]
    where = os.path.relpath(root, page.parent)
    introduction = INTRODUCTION.format(name=root.resolve().name, path=Path(where).as_posix())
    return "\n".join([introduction, _contents(experiments, root), *sections])


def exact_text(experiment: Experiment, root: Path) -> str:
    """The experiment's CSV file; empty if nothing has been run."""
    rows = [row for setting in experiment.settings for row in _exact(experiment, setting, root)]
    return csv_text(rows, {key: key for key in rows[0]}) if rows else ""


def _contents(experiments: Sequence[Experiment], root: Path) -> str:
    lines = []
    elsewhere = "" if root.name == RESULTS.name else f" --out {root}"
    for experiment in experiments:
        count = Counter(cell.status for cell in cells(experiment, root))
        status = f"{count['ended']} of {count.total()} runs"
        status += f", {count['begun']} more begun" if count["begun"] else ""
        status += f", {count['unusable']} unusable" if count["unusable"] else ""
        anchor = "".join(c for c in f"{experiment.title} {experiment.name}".lower() if c.isalnum() or c in " -")
        lines.append(
            f"| [{experiment.title}](#{anchor.replace(' ', '-')}) | {experiment.source} | "
            f"`fedpac reproduce {experiment.argument}{elsewhere}` | {status} |"
        )
    return "\n".join(["| what | in the paper | command | seed 0 |", "|---|---|---|---|", *lines]) + "\n"


def _section(experiment: Experiment, root: Path, page: Path) -> str:
    parts = [f"## {experiment.title} (`{experiment.name}`)\n"]
    if experiment.source:
        parts.append(f"In the paper: {experiment.source}.\n")
    waiting = []
    for key, setting in experiment.settings.items():
        rows = outcomes(experiment, key, root)
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


def setting_table(rows: Sequence[Outcome]) -> str:
    """The rows of one setting. Where some lack rounds or seeds, a column compares all on what they share."""
    ran = [row for row in rows if row.runs]
    columns = dict(COLUMNS)
    if stand_in(rows) or not any(row.paper is not None for row in rows):
        del columns["paper"], columns["difference"]
    shared = Ground.of(ran)
    if not all(row.finished and row.seeds == shared.seeds for row in ran):
        columns = {"method": columns.pop("method"), "shared": f"{shared} %", **columns}
        columns = {k: columns[k] for k in ("method", "paper", "shared", *columns) if k in columns}
    return markdown([_row(row, shared) for row in rows], columns)


def _row(outcome: Outcome, shared: Ground) -> dict[str, str]:
    paper = outcome.paper
    row = dict.fromkeys([*COLUMNS, "shared"], "")
    row |= {"method": outcome.title, "paper": "" if paper is None else f"{paper:.2f}"}
    if not outcome.runs:
        return row | {"ours": "its folder is unusable" if outcome.unusable else "not run yet"}
    best, at = outcome.best
    other: Which = "personal" if outcome.which == "received" else "received"
    difference = "" if paper is None else f"{outcome.final - paper:+.2f}"
    first = outcome.runs[0]
    rounds = max(1, first.last_round)
    return row | {
        "shared": _spread(shared.of_row(outcome)),
        "ours": f"{_spread(outcome.at(outcome.last))} {outcome.which}"
        + ("" if outcome.finished else f", round {outcome.last}"),
        "difference": difference if outcome.finished or not difference else f"({difference})",
        "best": f"{best:.2f} ({-at})",
        "other": f"{_spread(outcome.at(outcome.last, other))} {other}",
        "rounds": str(outcome.last) if outcome.finished else f"{outcome.last} of {first.wanted_rounds}",
        "seeds": str(len(outcome.runs))
        + (f", {len(outcome.begun)} more begun" if outcome.begun else "")
        + (f", {outcome.unusable} unusable" if outcome.unusable else ""),
        "megabytes": " / ".join(f"{total / rounds / 1e6:.1f}" for total in (first.bytes_up, first.bytes_down)),
    }


def _spread(values: np.ndarray[Any, Any]) -> str:
    return f"{values.mean():.2f}" + (f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else "")


def named(setting: Setting, rows: Sequence[Outcome]) -> str:
    """The setting's title. Data that are not the paper's are never shown under its name alone."""
    return setting.title + stand_in_mark([stand_in(rows)])


def stand_in(rows: Sequence[Outcome]) -> str:
    return next((run.note for row in rows for run in row.runs if run.note), "")


def _remarks(rows: Sequence[Outcome]) -> list[str]:
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


def _rank(rows: Sequence[Outcome]) -> str:
    """Where FedPAC stands among the rows, on what they share."""
    shared = Ground.of(rows)
    scores = {row.row: float(shared.of_row(row).mean()) for row in rows}
    score = scores.pop(OURS)
    place = 1 + sum(other > score + 1e-9 for other in scores.values())  # equal means may differ in their last bits
    apart = abs(score - max(scores.values()))
    lead = f"{apart:.2f} points {'ahead of the next' if place == 1 else 'behind the first'}"
    return f"number {place} of {len(rows)} in {shared}, {lead if apart > 1e-9 else 'level with another'}"


def _exact(experiment: Experiment, setting: str, root: Path) -> list[dict[str, str]]:
    """One line for each row and seed, with where the numbers come from."""
    lines = []
    for outcome in outcomes(experiment, setting, root):
        for run in sorted([*outcome.runs, *outcome.begun], key=lambda run: run.seed):
            summary, sessions = summarise(run), run.environment.get("sessions", [])
            line = {
                "setting": setting,
                "row": outcome.row,
                "title": outcome.title,
                "seed": str(run.seed),
                "shows": outcome.which,
                "paper": "" if outcome.paper is None or run.note else str(outcome.paper),
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
    """The experiment's figures (PNG; each has an SVG beside it) and the settings that each one shows."""
    settings: dict[Path, list[str]] = {}
    for key, setting in experiment.settings.items():
        alone = experiment.shows in ("table", "curves")
        name = key.replace(",", "-") if alone else setting.data["dataset"]
        settings.setdefault(page.parent / "img" / "results" / f"{experiment.name}-{name}.png", []).append(key)
    return settings
