"""fedpac export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import DataDir, Folder, OwnMethod, Trust, WhichModel, app, out


@app.command(epilog="Example:  fedpac export runs/fedpac-digits-seed0 --client 3 --out model.safetensors")
def export(
    folder: Folder,
    client: Annotated[int, typer.Option(help="Whose model.")] = 0,
    target: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("model.safetensors"),
    which: WhichModel = None,
    data_dir: DataDir = None,
    method: OwnMethod = None,
    trust: Trust = False,
) -> None:
    """Write a client's model as safetensors, for any torch program."""
    from fedpac.api import load_run

    model = load_run(folder, data_dir, method, trust).model(client, which)  # type: ignore[arg-type]
    written = model.save(target)
    out.print(f"The {model.which} model of client {client} is in {escape(str(written))}", soft_wrap=True)
