"""fedpac resume."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import DataDir, Folder, OwnMethod, Trust, Workers, app, out
from fedpac.cli.common import carry_out


@app.command(epilog="Example:  fedpac resume runs/fedpac-digits-seed0")
def resume(
    folder: Folder,
    workers: Workers = None,
    data_dir: DataDir = None,
    method: OwnMethod = None,
    trust: Trust = False,
    figures: Annotated[bool, typer.Option(help="Draw the run's figures at the end.")] = True,
) -> None:
    """Continue a run that was interrupted, as if it had not been."""
    from fedpac.runs.folder import RunStore

    store = RunStore.open(folder)
    if store.finished:
        out.print(f"{escape(str(folder))} is finished; there is nothing to continue.")
        return
    carry_out(store.config(method, trust), folder, data_dir, figures=figures, continuing=True, workers=workers)
