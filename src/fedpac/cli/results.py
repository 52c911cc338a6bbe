"""fedpac compare and reproduce."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import DataDir, Workers, app, on_interrupt, out, show_error, show_warning
from fedpac.cli.showing import Progress, show_comparison
from fedpac.errors import FedpacError, RunError, RunInUseError
from fedpac.runs import RESULTS

if TYPE_CHECKING:
    from fedpac.federation import RoundReport
    from fedpac.runs.reproduce import Cell


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
    from fedpac.runs.reading import read_runs
    from fedpac.runs.tables import csv_text, exact_rows

    runs = read_runs(folders, skipped=show_warning)
    if csv and folder is None:
        sys.stdout.write(csv_text(*exact_rows(runs)))
        return
    show_comparison(runs, folder, csv)


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
    folder: Annotated[Path, typer.Option("--out", help="Where the runs are.")] = RESULTS,
    page: Annotated[
        Path | None,
        typer.Option(
            help="The page to write. Default: docs/results.md, or beside runs that are elsewhere or of your own table."
        ),
    ] = None,
    workers: Workers = None,
    data_dir: DataDir = None,
) -> None:
    """Run what is still missing of a table or figure of the paper, and write the page of results.

    Finished runs are never repeated, an interrupted one goes on where it was, and tables that share a run share it.
    """
    from fedpac.runs.drawing import draw
    from fedpac.runs.experiment import find_experiments, shipped
    from fedpac.runs.reproduce import all_cells, cells, fill
    from fedpac.runs.results import write_page

    if name is None:
        _list_experiments(folder)
        return
    experiments = find_experiments(name)
    ours = all(experiment in shipped().values() for experiment in experiments)
    shown = list(shipped().values()) if ours else experiments  # the page of the paper, or of the user's own table
    if page is None:
        beside = folder / f"{'results' if ours else experiments[0].name}.md"
        page = Path("docs/results.md") if ours and folder == RESULTS else beside
    if page.is_dir():
        raise RunError(f"--page {page} is a folder; expected the file to write, such as {page / 'results.md'}")
    wanted = all_cells(experiments, folder, seeds, only)
    failures: list[Cell] = []

    @contextmanager
    def watch(at: int, cell: Cell) -> Iterator[Callable[[RoundReport], None]]:
        setting, done, place = cell.experiment.settings[cell.setting], cell.done(), cell.workplace
        there = f", has {done} rounds{'' if place == cell.folder else ' without a checkpoint, is done again'}"
        out.print(
            f"{at + 1}/{len(wanted)}  [bold]{escape(cell.experiment.title_of(cell.row))}[/], {escape(setting.title)}, "
            f"seed {cell.seed}{there if done else ''} → {escape(str(place))}",
            soft_wrap=True,
        )
        try:
            with Progress(cell.goal(rounds)) as progress:
                yield progress.see
        except RunInUseError:
            out.print("another process has it")
            raise

    def failed(cell: Cell, error: FedpacError) -> None:
        show_error(error)
        failures.append(cell)

    with on_interrupt(lambda: "the same command goes on from here"):
        for _ in fill(
            wanted, minutes=minutes, rounds=rounds, data_dir=data_dir, workers=workers, watch=watch, failed=failed
        ):
            write_page(shown, folder, page)
        runs = {cell.folder for cell in wanted}  # other tables may have them too
        changed = [e for e in shown if any(cell.folder in runs for cell in cells(e, folder, seeds))]
        drawn = [path for experiment in changed for path in draw(experiment, folder, page)]
        write_page(shown, folder, page)
    there = sum(cell.reached(cell.goal(rounds)) for cell in wanted if cell.status != "unusable")
    out.print(f"{there} of {len(wanted)} runs are there{'; the same command goes on' if there < len(wanted) else ''}.")
    tables = [f"{experiment.name}.csv" for experiment in shown if (folder / f"{experiment.name}.csv").exists()]
    also = [f"{len(tables)} tables in {folder}"] if tables else []
    also += [f"{pictures} figures"] if (pictures := sum(path.suffix == ".png" for path in drawn)) else []
    out.print(f"Written: {', '.join([str(page), *also])}", soft_wrap=True)
    if failures:
        raise RunError(f"{len(failures)} of {len(wanted)} runs failed; what is wrong with each is said above")


def _list_experiments(folder: Path) -> None:
    from fedpac.runs.experiment import shipped
    from fedpac.runs.reproduce import cells
    from fedpac.runs.tables import rich_table

    rows = []
    for experiment in shipped().values():
        wanted = cells(experiment, folder)
        there = sum(cell.status == "ended" for cell in wanted)
        rows.append({
            "name": experiment.name, "title": experiment.title, "source": experiment.source,
            "there": f"{there} of {len(wanted)}", "settings": "  ".join(experiment.settings),
        })  # fmt: skip
    columns = {"name": "name", "title": "what", "source": "in the paper", "there": "runs", "settings": "settings"}
    out.print(rich_table(rows, columns, left=["name", "title", "source", "settings"]))
