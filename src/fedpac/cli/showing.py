"""What people see of runs: how far they have come, and what came out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from fedpac.cli.app import out

if TYPE_CHECKING:
    from fedpac.federation import RoundReport
    from fedpac.runs.profile import Profile
    from fedpac.runs.reading import RunData


class Progress:
    """A live bar in a terminal; in a file or a pipe a line for every evaluated round."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.first: int | None = None  # the round this session began with
        self.start = time.monotonic()
        self.scores = ""
        self.bar: Any = None

    def __enter__(self) -> Progress:
        if out.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn

            self.bar = Progress(
                TextColumn("round {task.completed}/{task.total}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[scores]}"),
                TextColumn("[dim]{task.fields[pace]}[/]"),
                console=out,
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=self.rounds, scores="", pace="starting")
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def see(self, report: RoundReport) -> None:
        if self.first is None:
            self.first = report.round
            self.start = time.monotonic() - report.seconds
        each = (time.monotonic() - self.start) / (report.round - self.first + 1)
        left = each * (self.rounds - report.round)
        pace = f"{each:.2f} s a round, {_clock(left)} left"
        if report.scores:
            received, personal = (_mean(report.accuracies(which)) for which in ("received", "personal"))
            self.scores = f"received {received:5.2f} %  personal {personal:5.2f} %"
        if self.bar is not None:
            self.bar.update(self.task, completed=report.round, scores=self.scores, pace=pace)
        elif report.scores:
            out.print(f"round {report.round}/{self.rounds}  {self.scores}  {pace}", soft_wrap=True)


def _mean(accuracies: list[float]) -> float:
    return 100 * sum(accuracies) / len(accuracies)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def show_result(summary: dict[str, Any]) -> None:
    from fedpac.runs.tables import rich_table

    def line(what: str, show: Callable[[dict[str, Any]], str]) -> dict[str, str]:
        return {"what": what} | {which: show(summary[which]) for which in ("received", "personal")}

    rows = [
        line(f"mean over clients, round {summary['rounds']}", lambda r: f"{100 * r['final']['mean']:.2f}"),
        line("standard deviation over clients", lambda r: f"{100 * r['final']['std']:.2f}"),
        line("mean of the worst tenth of clients", lambda r: f"{100 * r['final']['worst_decile']:.2f}"),
        line("mean weighted by samples", lambda r: f"{100 * r['final']['weighted_mean']:.2f}"),
        line("best mean", lambda r: f"{100 * r['best']['mean']:.2f} in round {r['best']['round']}"),
    ]
    columns = {"what": "test accuracy (%)", "received": "received", "personal": "personal"}
    columns[summary["reported"]] += " (reported)"
    out.print(rich_table(rows, columns, left=["what"]))
    out.print(
        f"{summary['seconds']:.1f} s of rounds; {summary['bytes_up'] / 1e6:.1f} MB up and "
        f"{summary['bytes_down'] / 1e6:.1f} MB down, all clients together."
    )


def show_profile(profile: Profile, folder: Path) -> None:
    from fedpac.runs.tables import rich_table

    columns = {"what": "where the time went", "seconds": "seconds", "each": "a round", "share": "%"}
    out.print(rich_table(profile.rows(), columns, left=["what"]))
    out.print(
        "The exchange with the workers and the visits to clients are summed over all workers.\n"
        f"Every round: {profile.write(folder)}",
        soft_wrap=True,
    )


def show_comparison(runs: list[RunData], folder: Path | None, csv: bool) -> None:
    from fedpac.runs import tables

    rows = tables.compare(runs)
    out.print(tables.comparison_table(rows))
    for note in tables.notes(runs):
        out.print(f"[dim]{escape(note)}[/]")
    if folder is None:
        return
    from fedpac.runs.figures import draw_comparison
    from fedpac.runs.store import explained, write_atomically

    written = draw_comparison(runs, folder)
    with explained(folder):
        text = tables.markdown(rows, tables.COLUMNS) + "\n" + "\n\n".join(tables.notes(runs)) + "\n"
        write_atomically(folder / "table.md", text.encode())
        if csv:
            write_atomically(folder / "table.csv", tables.csv_text(*tables.exact_rows(runs)).encode())
    shown = [folder / "table.md", *([folder / "table.csv"] if csv else []), *(p for p in written if p.suffix == ".png")]
    out.print(f"Written: {', '.join(map(str, shown))}", soft_wrap=True)
