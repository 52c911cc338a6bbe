"""fedpac report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import app, out, show_warning


@app.command(epilog="Examples:  fedpac report runs/fedpac  |  fedpac report runs --out report.html")
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.", show_default=False)],
    file: Annotated[Path, typer.Option("--out", help="The file. Replaced if it is there.")] = Path("report.html"),
) -> None:
    """One HTML file about runs: who gains, curves, who learned from whom, cost, where the numbers come from.

    It needs no network and no server: mail it, print it, open it in any browser.
    """
    from fedpac.report.web.page import write_report
    from fedpac.runs.read import read_runs

    written = write_report(read_runs(folders, skipped=show_warning), file)
    out.print(f"Written: {escape(str(file))} ({written / 1e6:.2f} MB)", soft_wrap=True)
