"""fedpac report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import LOOK, app, examples, out, show_warning


@app.command(
    rich_help_panel=LOOK,
    epilog=examples(
        "fedpac report runs/fedpac",
        "fedpac report runs --out report.html",
    ),
)
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.", show_default=False)],
    file: Annotated[Path, typer.Option("--out", help="The HTML file to write. Replaced if it exists.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one HTML file about runs: who gains, accuracy curves, who learned from whom, cost and provenance.

    It needs no network and no server: mail it, print it, or open it in any browser.
    """
    from fedpac.report.web.page import write_report
    from fedpac.runs.read import read_runs

    written = write_report(read_runs(folders, skipped=show_warning), file)
    out.print(f"Written: {escape(str(file))} ({written / 1e6:.2f} MB)", soft_wrap=True)
