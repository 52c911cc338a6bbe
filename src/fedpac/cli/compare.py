"""fedpac compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedpac.cli.app import LOOK, app, examples, show_warning
from fedpac.cli.common import show_comparison


@app.command(
    rich_help_panel=LOOK,
    epilog=examples(
        "fedpac compare runs/*",
        "fedpac compare runs --out comparison --csv",
        "fedpac compare runs/local runs/fedpac --per-client",
    ),
)
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.", show_default=False)],
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Write the table and the accuracy curves to this folder."),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Full precision as CSV; printed unless --out is given.")] = False,
    per_client: Annotated[bool, typer.Option("--per-client", help="Also show each client's results.")] = False,
) -> None:
    """Compare runs in a table, and plot their accuracy curves. Runs that differ only in the seed form one row."""
    from fedpac.report.comparison import exact_rows
    from fedpac.report.text import csv_text
    from fedpac.runs.read import read_runs

    runs = read_runs(folders, skipped=show_warning)
    if csv and folder is None:
        sys.stdout.write(csv_text(*exact_rows(runs)))
        return
    show_comparison(runs, folder, csv, per_client)
