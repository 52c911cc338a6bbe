"""What several commands share: carrying out a run, showing how far it has come and what came out."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from fedpac.cli.app import counted, on_interrupt, out
from fedpac.headlines import HEADLINES

if TYPE_CHECKING:
    from fedpac.callbacks import Given
    from fedpac.config import Config
    from fedpac.inspect.profile import Profile
    from fedpac.methods.base import Which
    from fedpac.rounds import RoundReport
    from fedpac.runs.run_data import RunData


BOTH: tuple[Which, Which] = ("received", "personal")


class ProgressBar:
    """One live line in a terminal; in a file or a pipe a line for every evaluated round.

    label     what is in front of it
    passing   the line goes when the run is done
    """

    def __init__(self, rounds: int, label: str = "", passing: bool = False) -> None:
        self.rounds = rounds
        self.label = label
        self.passing = passing
        self.first: int | None = None  # the round this session began with
        self.start = time.monotonic()
        self.scores = self.failure = ""
        self.bar: Any = None

    def __enter__(self) -> ProgressBar:
        if out.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn
            from rich.table import Column

            def text(shown: str, **column: Any) -> TextColumn:
                return TextColumn(shown, table_column=Column(no_wrap=True, **column))

            self.bar = Progress(
                *([text("{task.description}")] if self.label else []),
                text("round {task.completed}/{task.total}"),
                BarColumn(bar_width=16),
                text("{task.fields[scores]}"),
                text("[dim]{task.fields[pace]}[/]"),
                text("[yellow]{task.fields[failure]}[/]", overflow="ellipsis", ratio=1),
                console=out,
                expand=True,
                transient=self.passing,
            )
            self.bar.start()
            self.task = self.bar.add_task(self.label, total=self.rounds, scores="", pace="starting", failure="")
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def see(self, report: RoundReport) -> None:
        if self.first is None:
            self.first = report.round
            self.start = time.monotonic() - report.seconds
        each = (time.monotonic() - self.start) / (report.round - self.first + 1)
        left = _clock(each * (self.rounds - report.round))
        headline = HEADLINES[report.metric]
        means = {which: _mean(report.accuracies(which)) for which in BOTH if report.accuracies(which)}
        spent = f"{report.spent}  " if report.spent else ""
        if report.failed:
            self.failure = f"round {report.round}: {report.failed[-1].reason}"
        if self.bar is not None:
            if means:
                shown = (f"{which} {headline.show(mean, 1)}" for which, mean in means.items())
                self.scores = "  ".join([*shown]) + f" {headline.unit}"
            pace, failure = f"{spent}{left} left", escape(self.failure)
            self.bar.update(self.task, completed=report.round, scores=self.scores, pace=pace, failure=failure)
        elif means:
            label = f"{self.label}  " if self.label else ""
            scores = "  ".join(f"{which} {headline.show(mean):>5} {headline.unit}" for which, mean in means.items())
            pace = f"{spent}{each:.2f} s a round, {left} left"
            out.print(f"{label}round {report.round}/{self.rounds}  {scores}  {pace}", soft_wrap=True, markup=False)


def _mean(accuracies: list[float]) -> float:
    return sum(accuracies) / len(accuracies)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def show_result(summary: dict[str, Any]) -> None:
    from fedpac.report.text import rich_table

    headline = HEADLINES[summary.get("metric", "accuracy")]
    show = headline.show
    measured = [which for which in BOTH if summary[which] is not None]

    def line(what: str, told: Callable[[dict[str, Any]], str]) -> dict[str, str]:
        return {"what": what} | {which: told(summary[which]) for which in measured}

    rows = [
        line(f"mean over clients, round {summary['rounds']}", lambda r: show(r["final"]["mean"])),
        line("standard deviation over clients", lambda r: show(r["final"]["std"])),
        line("mean of the worst tenth of clients", lambda r: show(r["final"]["worst_decile"])),
        line("mean weighted by samples", lambda r: show(r["final"]["weighted_mean"])),
        line("best mean", lambda r: f"{show(r['best']['mean'])} in round {r['best']['round']}"),
    ]
    if all("selected" in summary[which] for which in measured):
        chosen = line(
            "mean in the round selected on validation data",
            lambda r: f"{show(r['selected']['mean'])} in round {r['selected']['round']}",
        )
        rows[-1:] = [chosen, {**rows[-1], "what": "best mean (selected on test data)"}]
    if any("clients" in summary[which]["final"] for which in measured):
        rows.append(line("clients with a result", lambda r: str(r["final"].get("clients", summary["clients"]))))
    columns = {"what": f"test {headline.label}"}
    columns |= {which: f"{which} (reported)" if which == summary["reported"] else which for which in measured}
    out.print(rich_table(rows, columns, left=["what"]))
    if summary.get("stopped_early"):
        out.print(f"Stopped after round {summary['rounds']}: validation stopped improving.")
    out.print(
        f"{summary['seconds']:.1f} s for all rounds; {summary['bytes_up'] / 1e6:.1f} MB up and "
        f"{summary['bytes_down'] / 1e6:.1f} MB down in total."
    )
    show_privacy(summary.get("privacy", {}))


def show_privacy(privacy: dict[str, Any]) -> None:
    """What was encrypted and what was spent, with what that means."""
    if "encryption" in privacy:
        out.print(f"Encrypted: {escape(privacy['encryption'])}.", soft_wrap=True)
    if "guarantee" in privacy:
        epsilon = privacy["epsilon"]
        spent = "epsilon is infinite: there is no noise" if epsilon is None else f"epsilon = {epsilon:.3g}"
        out.print(
            f"Privacy: {spent}, for delta = {privacy['delta']:g}: {escape(privacy['guarantee'])}.", soft_wrap=True
        )
    if privacy.get("stopped"):
        out.print(f"[yellow]Stopped early: {escape(privacy['stopped'])}.[/]", soft_wrap=True)


def show_preprocessing(folder: Path) -> None:
    """What was out of the ordinary in the sites' tables."""
    if not (file := folder / "preprocessing.json").exists():
        return
    from fedpac.data.preprocessing import Preprocessing

    fitted = Preprocessing.from_json(file.read_bytes(), str(file))
    out.print(f"{len(fitted.columns)} table columns become {fitted.width} inputs: {escape(str(file))}", soft_wrap=True)
    for note in fitted.notes:
        out.print(f"  [yellow]{escape(note)}[/]", soft_wrap=True)


def show_profile(profile: Profile, folder: Path) -> None:
    from fedpac.report.text import rich_table

    columns = {"what": "where the time went", "seconds": "seconds", "each": "a round", "share": "%"}
    out.print(rich_table(profile.rows(), columns, left=["what"]))
    out.print(
        "Communication with the workers and visits to clients are summed over all workers.\n"
        f"Every round: {profile.write(folder)}",
        soft_wrap=True,
    )


def show_comparison(runs: list[RunData], folder: Path | None, csv: bool, per_client: bool = False) -> None:
    from rich.measure import Measurement

    from fedpac.report import comparison
    from fedpac.report.text import csv_text, markdown, rich_table

    rows = comparison.compare(runs)
    narrower: list[list[str]] = [[], ["MB"], ["MB", "seconds"], ["MB", "seconds", "worst tenth"]]
    for left_out in narrower:
        table = comparison.comparison_table(rows, left_out)
        if Measurement.get(out, out.options.update(width=1_000), table).minimum <= out.width:
            break
    out.print(table)
    measured = comparison.metric_rows(runs)
    for more, columns in (
        (measured, comparison.METRIC_COLUMNS),
        *([comparison.client_rows(runs)] if per_client else []),
    ):
        if more:
            out.print()
            left = ["method", "model", "metric", "round", "client"]
            out.print(rich_table(more, columns, left=left))
    narrow = [f"Hidden for lack of space: {', '.join(left_out)}. --csv shows every number."] if left_out else []
    for note in [*comparison.notes(runs), *narrow]:
        out.print(f"[dim]{escape(note)}[/]")
    if folder is None:
        return
    from fedpac.files import explained, write_atomically
    from fedpac.report.figures import draw_comparison

    written = draw_comparison(runs, folder)
    with explained(folder):
        text = markdown(rows, comparison.columns_of(rows)) + "\n" + "\n\n".join(comparison.notes(runs)) + "\n"
        if measured:
            text += "\n" + markdown(measured, comparison.METRIC_COLUMNS)
        if per_client:
            text += "\n" + markdown(*comparison.client_rows(runs))
        write_atomically(folder / "table.md", text.encode())
        if csv:
            write_atomically(folder / "table.csv", csv_text(*comparison.exact_rows(runs)).encode())
    shown = [folder / "table.md", *([folder / "table.csv"] if csv else []), *(p for p in written if p.suffix == ".png")]
    out.print(f"Written: {', '.join(map(str, shown))}", soft_wrap=True)


def _federate(
    config: Config, folder: Path, data_dir: Path | None, continuing: bool, told: Sequence[Given]
) -> dict[str, Any]:
    """The run with its clients as sites on this machine, each a process of its own."""
    from fedpac.callbacks import Callbacks
    from fedpac.deploy import require_flower
    from fedpac.runs.folder import RunStore

    require_flower()
    from fedpac.deploy.trial import run_trial

    store = RunStore(folder)
    if not continuing and folder.exists():
        store.check_free()
    data_dir = data_dir or store.data_dir()
    run_trial(config, folder, data_dir, lambda line: out.print(escape(line), soft_wrap=True), Callbacks(told))
    return store.read_json("summary.json")


def carry_out(
    config: Config,
    folder: Path,
    data_dir: Path | None,
    *,
    figures: bool = True,
    continuing: bool = False,
    workers: int | None = None,
    result: bool = True,
    profile: bool = False,
    callbacks: Sequence[Given] = (),
    passing: str = "",
) -> None:
    """Run or resume with progress, then show and draw the result.

    passing   what the run is among others: in a terminal, its line leaves nothing behind
    """
    from fedpac.inspect.profile import Profile
    from fedpac.runs.execute import resume as resume_run
    from fedpac.runs.execute import run as start_run

    gc.freeze()  # what is imported stays: neither this process nor its workers need to look through it for garbage

    title = config.make_method().title
    label = f"{passing}: {title}, seed {config.run.seed}" if passing else ""
    if not passing:
        out.print(
            f"[bold]{escape(title)}[/] on {config.data.dataset} {config.data.scenario}, "
            f"{counted(config.run.rounds, 'round')}, seed {config.run.seed} → {escape(str(folder))}"
        )

    def how_to_go_on() -> str:
        started = (folder / "config.toml").exists()
        return f"continue with: fedpac resume {folder}" if started else "nothing was written"

    with (
        on_interrupt(how_to_go_on),
        ProgressBar(config.run.rounds, label, passing=bool(passing)) as progress,
        Profile() if profile else nullcontext() as measured,
    ):
        told = [progress.see, *([measured.see] if measured is not None else []), *callbacks]
        if config.run.engine == "flower":
            summary = _federate(config, folder, data_dir, continuing, told)
        elif continuing:  # with the method that the config names: whoever made the config was asked about it
            summary = resume_run(folder, data_dir, told, workers, method=config.method["name"], model=config.model)
        else:
            summary = start_run(config, folder, data_dir, told)
    if summary["note"]:
        out.print(f"[yellow]Not the published data set: {escape(summary['note'])}[/]")
    show_preprocessing(folder)
    if result:
        show_result(summary)
    if measured is not None:
        show_profile(measured, folder)
    if figures:
        from fedpac.report.figures import draw_run
        from fedpac.runs.read import read_run

        written = draw_run(read_run(folder), folder / "figures")
        out.print(f"Figures: {', '.join(str(p) for p in written if p.suffix == '.png')}", soft_wrap=True)
