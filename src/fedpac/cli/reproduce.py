"""fedpac reproduce."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import PAPER, DataDir, Workers, app, counted, examples, on_interrupt, out, show_error
from fedpac.cli.common import ProgressBar
from fedpac.errors import FedpacError, RunError, RunInUseError
from fedpac.tables import RESULTS

if TYPE_CHECKING:
    from fedpac.callbacks import Given
    from fedpac.tables.cells import Cell


@app.command(
    rich_help_panel=PAPER,
    epilog=examples(
        "fedpac reproduce",
        "fedpac reproduce table1 --only fashion-mnist,20 --minutes 60",
        "fedpac reproduce ablation --only cifar10 --seeds 3",
        "fedpac reproduce my-table.toml",
    ),
)
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="A table or figure of the paper, 'all', or a TOML file. Default: list them."),
    ] = None,
    only: Annotated[
        str, typer.Option(help="Restrict to settings and rows, such as fashion-mnist,20 or cifar10,20,fedpac.")
    ] = "",
    minutes: Annotated[
        float | None, typer.Option(help="Time limit; run the same command again to continue.", min=0)
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Stop each run at this round; run the command again for more.", min=1)
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds, starting at 0.", min=1)] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of the runs. Default: results in a checkout of fedpac, or else fedpac-results."
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="The page to write. Default: docs/results.md in a checkout, or else next to the runs."),
    ] = None,
    workers: Workers = None,
    data_dir: DataDir = None,
) -> None:
    """Run whatever is missing from a table or figure of the paper, and write the results page.

    Finished runs are never repeated, interrupted ones are resumed, and tables share runs where they can.
    """
    from fedpac.report.drawing import draw
    from fedpac.report.page import write_page
    from fedpac.tables.cells import all_cells, fill
    from fedpac.tables.results import ResultsFolder
    from fedpac.tables.rows import FilledTable
    from fedpac.tables.spec import find_experiments, shipped

    checkout = Path("src/fedpac/experiments").is_dir()  # the only place whose own page and results these are
    folder = folder or (RESULTS if checkout else Path("fedpac-results"))
    if name is None:
        _list_experiments(folder)
        return
    experiments = find_experiments(name)
    ours = all(experiment in shipped().values() for experiment in experiments)
    shown = list(shipped().values()) if ours else experiments  # the page of the paper, or of the user's own table
    if page is None:
        beside = folder / f"{'results' if ours else experiments[0].name}.md"
        page = Path("docs/results.md") if ours and checkout and folder == RESULTS else beside
    if page.is_dir():
        raise RunError(f"--page {page} is a folder; expected the file to write, such as {page / 'results.md'}")
    results = ResultsFolder(folder)
    wanted = all_cells(experiments, results, seeds, only)
    failures: list[Cell] = []
    out.print(f"Runs go to {escape(str(folder))}, the results page to {escape(str(page))}.", soft_wrap=True)

    @contextmanager
    def watching(at: int, cell: Cell) -> Iterator[list[Given]]:
        setting, done, place = cell.experiment.settings[cell.setting], cell.done(), cell.workplace
        there = (
            f", has {counted(done, 'round')}{'' if place == cell.folder else ' without a checkpoint, starting over'}"
        )
        out.print(
            f"{at + 1}/{len(wanted)}  [bold]{escape(cell.experiment.title_of(cell.row))}[/], {escape(setting.title)}, "
            f"seed {cell.seed}{there if done else ''} → {escape(str(place))}",
            soft_wrap=True,
        )
        try:
            with ProgressBar(cell.goal(rounds)) as progress:
                yield [progress.see]
        except RunInUseError:
            out.print("another process is working on it")
            raise

    def failed(cell: Cell, error: FedpacError) -> None:
        show_error(error)
        failures.append(cell)

    with on_interrupt(lambda: "run the same command to continue"):
        for _ in fill(
            wanted, minutes=minutes, rounds=rounds, data_dir=data_dir, workers=workers, watching=watching, failed=failed
        ):
            write_page([FilledTable.of(experiment, results) for experiment in shown], page)
        tables = [FilledTable.of(experiment, results) for experiment in shown]
        drawn = [path for table in tables for path in draw(table, page)]
        write_page(tables, page)
    there = sum(cell.reached(rounds) for cell in wanted if cell.status != "unusable")
    out.print(
        f"{there} of {len(wanted)} runs are complete"
        f"{'; run the command again to continue' if there < len(wanted) else ''}."
    )
    exact = sum((folder / f"{experiment.name}.csv").exists() for experiment in shown)
    also = [f"{counted(exact, 'table')} in {folder}"] if exact else []
    also += [f"{counted(len(drawn), 'figure')} drawn"] if drawn else []
    out.print(f"Results page: {', '.join([str(page), *also])}", soft_wrap=True)
    if failures:
        raise RunError(f"{len(failures)} of {len(wanted)} runs failed; see the errors above")


def _list_experiments(folder: Path) -> None:
    from fedpac.report.text import rich_table
    from fedpac.tables.cells import cells
    from fedpac.tables.results import ResultsFolder
    from fedpac.tables.spec import shipped

    rows, results = [], ResultsFolder(folder)
    for experiment in shipped().values():
        wanted = cells(experiment, results)
        there = sum(cell.status == "ended" for cell in wanted)
        rows.append({
            "name": experiment.name, "title": experiment.title, "source": experiment.source,
            "there": f"{there} of {len(wanted)}", "settings": "  ".join(experiment.settings),
        })  # fmt: skip
    columns = {"name": "name", "title": "what", "source": "in the paper", "there": "runs", "settings": "settings"}
    out.print(rich_table(rows, columns, left=["name", "title", "source", "settings"]))
