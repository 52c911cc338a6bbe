"""fedpac resume."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import DataDir, Folder, OwnMethod, OwnNetwork, Trust, Workers, app, out
from fedpac.cli.common import carry_out


@app.command(
    epilog="Examples:  fedpac resume runs/fedpac-digits-seed0  |  fedpac resume runs/fedpac-digits-seed0 --rounds 400"
)
def resume(
    folder: Folder,
    rounds: Annotated[
        int | None, typer.Option(help="Extend the run to so many rounds.", min=1, show_default=False)
    ] = None,
    add: Annotated[
        list[str] | None, typer.Option("--add-site", help="A site that joins a federation. Repeatable.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove-site", help="A site that leaves a federation. Repeatable.")
    ] = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    method: OwnMethod = None,
    model: OwnNetwork = None,
    trust: Trust = False,
    figures: Annotated[bool, typer.Option(help="Draw the run's figures at the end.")] = True,
) -> None:
    """Continue a run that was interrupted, as if it had not been; or extend one that is finished."""
    from fedpac.runs.execute import extend
    from fedpac.runs.folder import RunStore

    store = RunStore.open(folder)
    if rounds or add or remove:
        extend(store, rounds, method, trust, add or [], remove or [], model)
        if store.config(method, trust, model).federation is not None:
            out.print(f"Go on with 'fedpac serve' and --out {escape(str(folder))}.", soft_wrap=True)
            return
    if store.finished:
        out.print(f"{escape(str(folder))} is finished; there is nothing to continue. --rounds extends it.")
        return
    carry_out(store.config(method, trust, model), folder, data_dir, figures=figures, continuing=True, workers=workers)
