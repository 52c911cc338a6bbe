"""The command line. Torch and everything that needs it is imported inside the commands: `fedpac --help` is instant."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from fedpac.errors import ConfigError, DataError, FedpacError, RunError, RunInUseError

if TYPE_CHECKING:
    from types import FrameType

    from fedpac.config import Config
    from fedpac.federation import RoundReport
    from fedpac.methods import Method
    from fedpac.runs.profile import Profile
    from fedpac.runs.reproduce import Cell
    from fedpac.runs.tables import RunData

app = typer.Typer(
    name="fedpac",
    help="Personalised federated learning: FedPAC and the methods it is compared with.",
    epilog="Start with: fedpac run --dataset digits --rounds 20",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)  # a file or a pipe has no width of its own
err = Console(stderr=True, highlight=False)

FLAGS = {  # flag -> key of the config
    "dataset": "data.dataset",
    "scenario": "data.scenario",
    "clients": "data.clients",
    "rounds": "run.rounds",
    "seed": "run.seed",
    "participation": "run.participation",
    "engine": "run.engine",
    "workers": "run.workers",
}

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where the data sets are. Default: $FEDPAC_DATA, else the user's cache folder."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the config, such as training.lr=0.05. Repeatable."),
]
Workers = Annotated[int | None, typer.Option(help="Worker processes. Default: one per core.")]
Folder = Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)]
Which = Annotated[
    str | None,
    typer.Option(help="received or personal. Default: the one the method's paper reports."),
]


def main(arguments: list[str] | None = None) -> NoReturn:
    """The entry point. A mistake of the user's is one message, not a traceback."""
    try:
        with _on_interrupt(lambda: "nothing was written"):
            app(arguments)
    except FedpacError as error:
        err.print(f"[bold red]error:[/] [red]{escape(str(error))}[/]", soft_wrap=True)
        sys.exit(1)
    except BrokenPipeError:  # the reader of a pipe has gone, as in `fedpac methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


# --- run, resume, demo --------------------------------------------------------------------------------------------


@app.command(
    epilog="Examples:  fedpac run --method fedpac --dataset fashion-mnist --rounds 200 --seed 0  |  "
    "fedpac run experiment.toml --set training.lr=0.05 --set method.lam=0  |  "
    "fedpac run --method my_package.my_module:MyMethod --dataset digits",
)
def run(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML file; flags override it.", show_default=False),
    ] = None,
    method: Annotated[str | None, typer.Option(help="See 'fedpac methods'.")] = None,
    dataset: Annotated[str | None, typer.Option(help="See 'fedpac data'.")] = None,
    scenario: Annotated[
        str | None, typer.Option(help="How data differ between clients: groups, dirichlet, ...")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Names every random stream of the run.")] = None,
    participation: Annotated[float | None, typer.Option(help="Share of clients in a round.")] = None,
    engine: Annotated[str | None, typer.Option(help="auto, process or serial; the numbers are the same.")] = None,
    workers: Workers = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="A new folder. Default: runs/<method>-<dataset>-seed<seed>."),
    ] = None,
    data_dir: DataDir = None,
    sets: Sets = None,
    figures: Annotated[bool, typer.Option(help="Draw the run's figures at the end.")] = True,
    profile: Annotated[bool, typer.Option("--profile", help="Show at the end where the time went.")] = False,
) -> None:
    """Train one method on one data set, into a folder.

    The paper's settings fill in whatever is not said; the folder's config.toml states them all.
    """
    from fedpac.config import make_config, override, read_config

    values: dict[str, Any] = read_config(config) if config else {}
    if method is not None:
        settings = values.get("method", {})
        known = settings if isinstance(settings, dict) and settings.get("name") == method else {}
        values = {**values, "method": {**known, "name": method}}  # another method's settings do not apply to this one
    given = locals()
    for flag, key in FLAGS.items():
        if given[flag] is not None:
            section, _, name = key.partition(".")
            inner = values.get(section, {})
            values = {**values, section: {**(inner if isinstance(inner, dict) else {}), name: given[flag]}}
    for assignment in sets or []:
        values = override(values, assignment)
    chosen = make_config(values)
    _carry_out(chosen, folder or _new_folder(chosen), data_dir, figures=figures, profile=profile)


@app.command(epilog="Example:  fedpac resume runs/fedpac-digits-seed0")
def resume(
    folder: Folder,
    workers: Workers = None,
    data_dir: DataDir = None,
    figures: Annotated[bool, typer.Option(help="Draw the run's figures at the end.")] = True,
) -> None:
    """Continue a run that was interrupted, as if it had not been."""
    from fedpac.config import make_config, read_config
    from fedpac.runs.store import RunStore

    if RunStore.open(folder).finished:
        out.print(f"{escape(str(folder))} is finished; there is nothing to continue.")
        return
    config = make_config(read_config(folder / "config.toml"))
    _carry_out(config, folder, data_dir, figures=figures, continuing=True, workers=workers)


@app.command(epilog="Example:  fedpac demo --rounds 10")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Replaced if it is there.")] = Path("demo-runs"),
    rounds: Annotated[int, typer.Option(help="Communication rounds of each method.", min=1)] = 20,
    workers: Workers = None,
) -> None:
    """FedPAC beside FedAvg, FedAvg-FT and Local-only on handwritten digits, in a few minutes at most."""
    import shutil

    from fedpac.config import make_config
    from fedpac.runs import figures
    from fedpac.runs.tables import read_run

    if folder.exists():
        strangers = [p for p in folder.iterdir() if p.name != "comparison" and not (p / "config.toml").is_file()]
        if strangers:
            raise RunError(f"{folder} holds something else than runs ({strangers[0].name}): choose another with --out")
        shutil.rmtree(folder)
    names = ("fedpac", "fedavg", "fedavg-ft", "local")
    for name in names:
        values = {
            "method": name,
            "data": {"dataset": "digits"},
            "run": {"rounds": rounds, "evaluate_every": max(1, rounds // 15), "workers": workers},
        }
        _carry_out(make_config(values), folder / name, None, result=False, figures=name == "fedpac")
    runs = [read_run(folder / name) for name in names]
    _show_comparison(runs, folder / "comparison", csv=True)
    last = max(runs[0].peer_weights)
    out.print(f"\nWho learns from whom in FedPAC, round {last} (rows receive, clients ordered by group):")
    for line in figures.heatmap_text(runs[0]):
        out.print(f"  [blue]{line}[/]")
    out.print(f"\nThe heat map: {folder / 'fedpac' / 'figures' / 'weights.png'}")


def _new_folder(config: Config) -> Path:
    name = str(config.method["name"]).replace(":", "-")
    base = Path("runs") / f"{name}-{config.data.dataset}-seed{config.run.seed}"
    folder, n = base, 1
    while folder.exists():
        n += 1
        folder = base.with_name(f"{base.name}-{n}")
    return folder


def _carry_out(
    config: Config,
    folder: Path,
    data_dir: Path | None,
    *,
    figures: bool = True,
    continuing: bool = False,
    workers: int | None = None,
    result: bool = True,
    profile: bool = False,
) -> None:
    """Run or resume with progress, then show and draw the result."""
    from fedpac.runs.profile import Profile
    from fedpac.runs.run import resume as resume_run
    from fedpac.runs.run import run as start_run

    gc.freeze()  # what is imported stays: neither this process nor its workers need to look through it for garbage

    title = config.make_method().title
    out.print(
        f"[bold]{escape(title)}[/] on {config.data.dataset} {config.data.scenario}, {config.run.rounds} rounds, "
        f"seed {config.run.seed} → {escape(str(folder))}"
    )

    def how_to_go_on() -> str:
        started = (folder / "config.toml").exists()
        return f"continue with: fedpac resume {folder}" if started else "nothing was written"

    with (
        _on_interrupt(how_to_go_on),
        _Progress(config.run.rounds) as progress,
        Profile() if profile else nullcontext() as measured,
    ):

        def see(report: RoundReport) -> None:
            progress.see(report)
            if measured is not None:
                measured.see(report)

        summary = resume_run(folder, data_dir, see, workers) if continuing else start_run(config, folder, data_dir, see)
    if summary["note"]:
        out.print(f"[yellow]Not the published data: {escape(summary['note'])}[/]")
    if result:
        _show_result(summary)
    if measured is not None:
        _show_profile(measured, folder)
    if figures:
        from fedpac.runs.figures import draw_run
        from fedpac.runs.tables import read_run

        written = draw_run(read_run(folder), folder / "figures")
        out.print(f"Figures: {', '.join(str(p) for p in written if p.suffix == '.png')}", soft_wrap=True)


@contextmanager
def _on_interrupt(hint: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C, and the polite kill of a batch system, end the process at once and say how to go on.

    A run can be continued after a kill at any moment, so there is nothing to tidy up. An exception instead could be
    swallowed by a library that is being imported, or wait for a lock that the interrupted line holds. The workers end
    when their pipes close.
    """
    parent = os.getpid()

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        if os.getpid() == parent:
            show_cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # the progress bar hides it
            os.write(2, f"{show_cursor}interrupted; {hint()}\n".encode())
        os._exit(130)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Progress:
    """A live bar in a terminal; in a file or a pipe a line for every evaluated round."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.first: int | None = None  # the round this session began with
        self.start = time.monotonic()
        self.scores = ""
        self.bar: Any = None

    def __enter__(self) -> _Progress:
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


def _show_result(summary: dict[str, Any]) -> None:
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


def _show_profile(profile: Profile, folder: Path) -> None:
    from fedpac.runs.tables import rich_table

    columns = {"what": "where the time went", "seconds": "seconds", "each": "a round", "share": "%"}
    out.print(rich_table(profile.rows(), columns, left=["what"]))
    out.print(
        "The exchange with the workers and the visits to clients are summed over all workers.\n"
        f"Every round: {profile.write(folder)}",
        soft_wrap=True,
    )


# --- compare ------------------------------------------------------------------------------------------------------


@app.command(epilog="Examples:  fedpac compare runs/*  |  fedpac compare runs --out comparison --csv")
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.", show_default=False)],
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Write the table and the accuracy curves into this folder."),
    ] = None,
    csv: Annotated[
        bool, typer.Option("--csv", help="Every number at full precision; to the screen without --out.")
    ] = False,
) -> None:
    """A table of runs side by side, and their accuracy curves. Runs that differ in the seed alone are one row."""
    from fedpac.runs.tables import csv_text, exact_rows, read_runs

    runs = read_runs(folders)
    if csv and folder is None:
        sys.stdout.write(csv_text(*exact_rows(runs)))
        return
    _show_comparison(runs, folder, csv)


def _show_comparison(runs: list[RunData], folder: Path | None, csv: bool) -> None:
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


# --- reproduce ----------------------------------------------------------------------------------------------------


@app.command(
    epilog="Examples:  fedpac reproduce  |  fedpac reproduce table1 --only fashion-mnist,20 --minutes 60  |  "
    "fedpac reproduce ablation --only cifar10 --seeds 3  |  fedpac reproduce my-table.toml",
)
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="A table or figure of the paper, 'all', or a TOML file. Left out: list them."),
    ] = None,
    only: Annotated[
        str, typer.Option(help="Settings by all of their words, rows by name: fashion-mnist,20 or cifar10,20,fedpac.")
    ] = "",
    minutes: Annotated[float | None, typer.Option(help="Stop after this time; call again to go on.", min=0)] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Bring each run this far only; call again for more.", min=1)
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds: 0, 1, ...", min=1)] = 1,
    folder: Annotated[Path, typer.Option("--out", help="Where the runs are.")] = Path("results"),
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/results.md"),
    workers: Workers = None,
    data_dir: DataDir = None,
) -> None:
    """Run what is still missing of a table or figure of the paper, and write the page of results.

    Finished runs are never repeated, an interrupted one goes on where it was, and tables that share a run share it.
    """
    from fedpac.runs.reproduce import all_cells, fill, find_experiments, shipped
    from fedpac.runs.results import draw, write_page

    if name is None:
        _list_experiments(folder)
        return
    experiments = find_experiments(name)
    shown = [*shipped().values(), *(e for e in experiments if e.name not in shipped())]
    wanted = all_cells(experiments, folder, seeds, only)

    def goal(cell: Cell) -> int:
        return min(cell.rounds, rounds or cell.rounds)

    @contextmanager
    def watch(at: int, cell: Cell) -> Iterator[Callable[[RoundReport], None]]:
        setting, done = cell.experiment.settings[cell.setting], cell.done()
        out.print(
            f"{at + 1}/{len(wanted)}  [bold]{escape(cell.experiment.title_of(cell.row))}[/], {escape(setting.title)}, "
            f"seed {cell.seed}{f', has {done} rounds' if done else ''} → {escape(str(cell.folder))}",
            soft_wrap=True,
        )
        try:
            with _Progress(goal(cell)) as progress:
                yield progress.see
        except RunInUseError:
            out.print("another process has it")
            raise

    with _on_interrupt(lambda: "the same command goes on from here"):
        for _ in fill(wanted, minutes=minutes, rounds=rounds, data_dir=data_dir, workers=workers, watch=watch):
            write_page(shown, folder, page)
        drawn = [path for experiment in experiments for path in draw(experiment, folder, page)]
        write_page(shown, folder, page)
    there = sum(cell.reached(goal(cell)) for cell in wanted)
    out.print(f"{there} of {len(wanted)} runs are there{'; the same command goes on' if there < len(wanted) else ''}.")
    out.print(f"Written: {page}, {folder}/*.csv and {sum(p.suffix == '.png' for p in drawn)} figures", soft_wrap=True)


def _list_experiments(folder: Path) -> None:
    from fedpac.runs.reproduce import cells, shipped
    from fedpac.runs.tables import rich_table

    rows = []
    for experiment in shipped().values():
        wanted = cells(experiment, folder)
        there = sum(cell.reached(cell.rounds) for cell in wanted)
        rows.append({
            "name": experiment.name, "title": experiment.title, "source": experiment.source,
            "there": f"{there} of {len(wanted)}", "settings": "  ".join(experiment.settings),
        })  # fmt: skip
    columns = {"name": "name", "title": "what", "source": "in the paper", "there": "runs", "settings": "settings"}
    out.print(rich_table(rows, columns, left=["name", "title", "source", "settings"]))


# --- methods ------------------------------------------------------------------------------------------------------


@app.command(epilog="Examples:  fedpac methods  |  fedpac methods fedpac")
def methods(
    name: Annotated[str | None, typer.Argument(help="One method, in full.", show_default=False)] = None,
) -> None:
    """List the methods, or explain one: its equations, settings, messages, state and cost."""
    from fedpac.methods import find_method
    from fedpac.methods import methods as all_methods
    from fedpac.runs.tables import rich_table

    if name is None:
        rows = [
            {"name": key, "title": cls.title, "family": cls.family, "about": (cls.__doc__ or "").strip().split("\n")[0]}
            for key, cls in all_methods().items()
        ]
        columns = {"name": "name", "title": "title", "family": "family", "about": "in one line"}
        out.print(rich_table(rows, columns, left=list(columns)))
        return
    _explain_method(find_method(name))


def _explain_method(cls: type[Method]) -> None:
    import inspect

    from fedpac.runs.anatomy import WORK, dissect
    from fedpac.runs.tables import rich_table

    out.print(f"[bold]{escape(cls.title)}[/]  ({escape(cls.family)}); reports the [bold]{cls.reported}[/] accuracy\n")
    out.print(escape(inspect.cleandoc(cls.__doc__ or "")), soft_wrap=True)
    out.print(f"[dim]{escape(inspect.cleandoc(inspect.getmodule(cls).__doc__ or ''))}[/]\n", soft_wrap=True)
    if cls.model_fields:
        rows = [
            {
                "name": key,
                "default": str(field.default),
                "allowed": _allowed(field),
                "about": field.description or "",
            }
            for key, field in cls.model_fields.items()
        ]
        columns = {"name": "setting", "default": "default", "allowed": "allowed", "about": "meaning"}
        out.print(rich_table(rows, columns, left=list(columns)))
    anatomy = dissect(cls())

    def parts(sizes: dict[str, int]) -> str:
        return ", ".join(f"{escape(part)} ({size:,} B)" for part, size in sizes.items()) or "nothing"

    def passes(counted: dict[str, float]) -> str:
        return "; ".join(f"{n:g} × {WORK[kind]}" for kind, n in counted.items()) or "nothing"

    out.print("\n[bold]Measured[/] with the paper's Fashion-MNIST network and E = 5, one client, one round:")
    for what, text in (
        ("server → client", f"{anatomy.bytes_down:,} B: {parts(anatomy.down)}"),
        ("client → server", f"{anatomy.bytes_up:,} B: {parts(anatomy.up)}"),
        ("kept at the client", parts(anatomy.on_client)),
        ("kept at the server", parts(anatomy.on_server) + " with 3 clients"),
        ("local training, passes over the data", passes(anatomy.training)),
        (f"then, to predict ({cls.reported})", passes(anatomy.predicting)),
    ):
        out.print(f"  {what}: {text}", soft_wrap=True)


def _allowed(field: Any) -> str:
    """The range of a pydantic field, in symbols."""
    from typing import Literal, get_args, get_origin

    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if choices:
        return ", ".join(map(str, choices))
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(bound, key):g}"
        for bound in field.metadata
        for key, sign in signs.items()
        if hasattr(bound, key)
    ]
    return ", ".join(bounds) or getattr(field.annotation, "__name__", str(field.annotation))


# --- data ---------------------------------------------------------------------------------------------------------


@app.command(
    epilog="Examples:  fedpac data  |  fedpac data cifar10 --download  |  "
    "fedpac data digits --scenario dirichlet --clients 20 --figure dirichlet.png"
)
def data(
    name: Annotated[str | None, typer.Argument(help="One data set.", show_default=False)] = None,
    data_dir: DataDir = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch the named data set if it is not there.")] = False,
    scenario: Annotated[str | None, typer.Option(help="Show how this scenario deals it out.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients of the scenario.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the scenario.", min=0)] = 0,
    sets: Sets = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the scenario: clients by classes.")] = None,
) -> None:
    """Which data sets are here, and what a scenario makes of them."""
    from fedpac.runs.catalogue import COLUMNS, TEXT, catalogue
    from fedpac.runs.tables import rich_table

    if scenario is not None or figure is not None:
        _show_scenario(name, data_dir, scenario, clients, seed, sets or [], figure)
        return
    if download and name is None:
        raise DataError("name the data set to download, such as: fedpac data fashion-mnist --download")
    rows = catalogue(name, data_dir, download)
    if name:
        for key, header in COLUMNS.items():
            out.print(f"[bold]{header}[/]: {escape(rows[0][key])}", soft_wrap=True)
        return
    short = {key: header for key, header in COLUMNS.items() if key not in ("source", "where")}
    out.print(rich_table(rows, short, left=TEXT))
    from fedpac.data.datasets import data_root

    out.print(
        f"[dim]They are looked for in {escape(str(data_root(data_dir)))}. More: fedpac data NAME[/]", soft_wrap=True
    )


def _show_scenario(
    name: str | None,
    data_dir: Path | None,
    scenario: str | None,
    clients: int | None,
    seed: int,
    sets: list[str],
    figure: Path | None,
) -> None:
    from fedpac.config import make_config, override
    from fedpac.data.scenario import build, describe

    given = {"dataset": name, "scenario": scenario, "clients": clients}
    values: dict[str, Any] = {"data": {k: v for k, v in given.items() if v is not None}, "run": {"seed": seed}}
    for assignment in sets:
        values = override(values, assignment)
    config = make_config(values)
    built = build(config.data, seed, data_dir)
    counts = describe(built).numpy()
    sizes = counts.sum(axis=1)
    held = (counts > 0).sum(axis=1)
    out.print(
        f"{escape(built.name)}: {len(built.clients)} clients with {sizes.min()} to {sizes.max()} training samples of "
        f"{held.min()} to {held.max()} classes"
    )
    if built.note:
        out.print(f"[yellow]{escape(built.note)}[/]")
    if figure is not None:
        from fedpac.runs.figures import bubble_plot

        written = bubble_plot(counts, built.name, figure, [client.group for client in built.clients])
        out.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True)


# --- models of a finished run -------------------------------------------------------------------------------------


@app.command(epilog="Example:  fedpac predict runs/fedpac-digits-seed0 --client 3 images.npz")
def predict(
    folder: Folder,
    file: Annotated[Path, typer.Argument(help="An .npz file with x (and perhaps y), or an image.", show_default=False)],
    client: Annotated[int, typer.Option(help="Whose model.")] = 0,
    which: Which = None,
    data_dir: DataDir = None,
) -> None:
    """Predict with a client's model: one line with class and probability for every sample."""
    from fedpac.api import load_run

    result = load_run(folder, data_dir)
    x, y = _samples(file, tuple(result.scenario.shape))
    proba = result.model(client, which).predict_proba(x)  # type: ignore[arg-type]
    classes = proba.argmax(axis=1)
    for i, (k, p) in enumerate(zip(classes, proba.max(axis=1), strict=True)):
        sys.stdout.write(f"{i},{k},{p:.4f}\n")
    if y is not None:
        err.print(f"accuracy {100 * float((classes == y).mean()):.2f} % of {len(y)} samples")


@app.command(epilog="Example:  fedpac export runs/fedpac-digits-seed0 --client 3 --out model.safetensors")
def export(
    folder: Folder,
    client: Annotated[int, typer.Option(help="Whose model.")] = 0,
    target: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("model.safetensors"),
    which: Which = None,
    data_dir: DataDir = None,
) -> None:
    """Write a client's model as safetensors, for any torch program."""
    from fedpac.api import load_run

    model = load_run(folder, data_dir).model(client, which)  # type: ignore[arg-type]
    written = model.save(target)
    out.print(f"The {model.which} model of client {client} is in {escape(str(written))}", soft_wrap=True)


def _samples(file: Path, shape: tuple[int, ...]) -> tuple[Any, Any]:
    import numpy as np

    if not file.is_file():
        raise DataError(f"there is no file {file}")
    if file.suffix == ".npz":
        try:
            with np.load(file, allow_pickle=False) as arrays:
                if "x" not in arrays:
                    raise DataError(f"{file} has the arrays {', '.join(arrays)}; expected x, and perhaps y")
                return arrays["x"], arrays.get("y")
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{file} is not a readable .npz file of plain arrays ({error})") from None
    from PIL import Image

    if len(shape) != 3:
        raise ConfigError(f"this model takes samples of shape {shape}, not images; give an .npz file with x")
    try:
        with Image.open(file) as image:
            pixels = np.array(image.convert("L" if shape[0] == 1 else "RGB"))
    except (OSError, SyntaxError) as error:
        raise DataError(f"{file} is neither an .npz file nor a readable image ({error})") from None
    if pixels.shape[:2] != shape[1:]:
        raise DataError(f"{file} is {pixels.shape[1]} x {pixels.shape[0]} pixels, expected {shape[2]} x {shape[1]}")
    return pixels[None], None


if __name__ == "__main__":
    main()
