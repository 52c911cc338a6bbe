"""fedpac resume."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import TRAIN, DataDir, Folder, OwnMethod, OwnNetwork, Track, Trust, Workers, app, examples, out
from fedpac.cli.common import carry_out


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "fedpac resume runs/fedpac-digits-seed0",
        "fedpac resume runs/fedpac-digits-seed0 --rounds 400",
        "fedpac resume runs/fedpac-digits-seed0 --track rounds.jsonl",
    ),
)
def resume(
    folder: Folder,
    rounds: Annotated[
        int | None, typer.Option(help="Extend the run to this many rounds.", min=1, show_default=False)
    ] = None,
    add: Annotated[
        list[str] | None, typer.Option("--add-site", help="Add a site to the federation. Repeatable.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove-site", help="Remove a site from the federation. Repeatable.")
    ] = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    method: OwnMethod = None,
    model: OwnNetwork = None,
    trust: Trust = False,
    track: Track = None,
    figures: Annotated[bool, typer.Option(help="Plot the run's figures at the end.")] = True,
) -> None:
    """Resume an interrupted run, with the same results as if it had never stopped; or extend a finished one."""
    from fedpac.runs.execute import extend
    from fedpac.runs.folder import RunStore
    from fedpac.tracking import tracker

    store = RunStore.open(folder)
    if rounds or add or remove:
        extend(store, rounds, method, trust, add or [], remove or [], model)
        if store.config(method, trust, model).federation is not None:
            out.print(f"Continue with 'fedpac serve' and --out {escape(str(folder))}.", soft_wrap=True)
            return
    if store.finished:
        out.print(f"{escape(str(folder))} is finished; nothing to resume. Use --rounds to extend it.")
        return
    config, callbacks = store.config(method, trust, model), [tracker(target) for target in track or []]
    carry_out(config, folder, data_dir, figures=figures, continuing=True, workers=workers, callbacks=callbacks)
