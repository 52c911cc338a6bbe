"""fedpac export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import USE, DataDir, Folder, OwnMethod, OwnNetwork, Trust, WhichModel, app, examples, out


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "fedpac export runs/fedpac-digits-seed0 --client 3 --out model",
        "fedpac export runs/hospitals --client north --selected --licence CC-BY-4.0 --out north-model",
        "fedpac export runs/hospitals --client north --out weights.safetensors",
    ),
)
def export(
    folder: Folder,
    client: Annotated[str, typer.Option(help="Whose model: client name or number.")] = "0",
    target: Annotated[
        Path, typer.Option("--out", help="A new folder for the bundle, or a .safetensors file for just the weights.")
    ] = Path("model"),
    which: WhichModel = None,
    selected: Annotated[bool, typer.Option("--selected", help="Use the round selected on validation data.")] = False,
    licence: Annotated[str, typer.Option(help="Licence of the model, recorded in model.json.")] = "",
    onnx: Annotated[bool, typer.Option(help="Also write model.onnx, if ONNX supports the model.")] = True,
    data_dir: DataDir = None,
    method: OwnMethod = None,
    model: OwnNetwork = None,
    trust: Trust = False,
) -> None:
    """Export a client's model as a bundle: a folder that predicts without the run and its data.

    model.json describes it; use it with 'fedpac predict FOLDER rows.csv' or fedpac.load_model.
    """
    from fedpac.api import load_run
    from fedpac.bundles import check_free, read_card
    from fedpac.bundles.card import ONNX

    if target.suffix != ".safetensors":
        check_free(target)  # before the work
    chosen = load_run(folder, data_dir, method, trust, selected, model).model(client, which)  # type: ignore[arg-type]
    written = chosen.save(target, licence, onnx)
    out.print(f"The {chosen.which} model of {escape(chosen.name)} is in {escape(str(written))}", soft_wrap=True)
    if not written.is_dir():
        return
    card = read_card(written)
    if ONNX in card.files:
        out.print("model.onnx is verified: onnxruntime predicts the same as torch", soft_wrap=True)
    elif onnx:
        out.print(f"[yellow]No model.onnx was written: {escape(card.onnx)}[/]", soft_wrap=True)
    for note in card.notes:
        out.print(f"[yellow]Before you share it: it {escape(note)}[/]", soft_wrap=True)
