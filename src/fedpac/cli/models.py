"""fedpac predict and export: the models of a finished run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from fedpac.cli.app import DataDir, Folder, Which, app, err, out
from fedpac.errors import ConfigError, DataError


@app.command(epilog="Example:  fedpac predict runs/fedpac-digits-seed0 --client 3 images.npz")
def predict(
    folder: Folder,
    file: Annotated[Path, typer.Argument(help="An .npz file with x (and perhaps y), or an image.", show_default=False)],
    client: Annotated[int, typer.Option(help="Whose model.")] = 0,
    which: Which = None,
    data_dir: DataDir = None,
) -> None:
    """Predict with a client's model: one line with class and probability for every sample."""
    from fedpac.api import load_run

    result = load_run(folder, data_dir)
    x, y = _samples(file, tuple(result.scenario.shape))
    proba = result.model(client, which).predict_proba(x)  # type: ignore[arg-type]
    classes = proba.argmax(axis=1)
    for i, (k, p) in enumerate(zip(classes, proba.max(axis=1), strict=True)):
        sys.stdout.write(f"{i},{k},{p:.4f}\n")
    if y is not None:
        err.print(f"accuracy {100 * float((classes == y).mean()):.2f} % of {len(y)} samples")


@app.command(epilog="Example:  fedpac export runs/fedpac-digits-seed0 --client 3 --out model.safetensors")
def export(
    folder: Folder,
    client: Annotated[int, typer.Option(help="Whose model.")] = 0,
    target: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("model.safetensors"),
    which: Which = None,
    data_dir: DataDir = None,
) -> None:
    """Write a client's model as safetensors, for any torch program."""
    from fedpac.api import load_run

    model = load_run(folder, data_dir).model(client, which)  # type: ignore[arg-type]
    written = model.save(target)
    out.print(f"The {model.which} model of client {client} is in {escape(str(written))}", soft_wrap=True)


def _samples(file: Path, shape: tuple[int, ...]) -> tuple[Any, Any]:
    import numpy as np

    from fedpac.data.own import read_npz

    if not file.is_file():
        raise DataError(f"there is no file {file}")
    if file.suffix == ".npz":
        arrays = read_npz(file)
        if "x" not in arrays:
            raise DataError(f"{file} has the arrays {', '.join(arrays)}; expected x, and perhaps y")
        x, y = arrays["x"], arrays.get("y")
        if y is not None and y.shape != x.shape[:1]:
            raise DataError(f"{file}: y has shape {y.shape}, expected one label for each of the {len(x)} samples of x")
        return x, y
    from PIL import Image

    if len(shape) != 3:
        raise ConfigError(f"this model takes samples of shape {shape}, not images; give an .npz file with x")
    try:
        with Image.open(file) as image:
            pixels = np.array(image.convert("L" if shape[0] == 1 else "RGB"))
    except (OSError, SyntaxError) as error:
        raise DataError(f"{file} is neither an .npz file nor a readable image ({error})") from None
    if pixels.shape[:2] != shape[1:]:
        raise DataError(f"{file} is {pixels.shape[1]} x {pixels.shape[0]} pixels, expected {shape[2]} x {shape[1]}")
    return pixels[None], None
