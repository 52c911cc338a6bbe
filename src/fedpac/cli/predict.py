"""fedpac predict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpac.cli.app import DataDir, Folder, OwnMethod, Trust, WhichModel, app, counted, err
from fedpac.errors import ConfigError, DataError


@app.command(epilog="Example:  fedpac predict runs/fedpac-digits-seed0 --client 3 images.npz")
def predict(
    folder: Folder,
    file: Annotated[Path, typer.Argument(help="An .npz file with x (and perhaps y), or an image.", show_default=False)],
    client: Annotated[int, typer.Option(help="Whose model.")] = 0,
    which: WhichModel = None,
    data_dir: DataDir = None,
    method: OwnMethod = None,
    trust: Trust = False,
) -> None:
    """Predict with a client's model: one line with class and probability for every sample."""
    from fedpac.api import load_run

    result = load_run(folder, data_dir, method, trust)
    x, y = _samples(file, tuple(result.scenario.shape))
    proba = result.model(client, which).predict_proba(x)  # type: ignore[arg-type]
    classes = proba.argmax(axis=1)
    for i, (k, p) in enumerate(zip(classes, proba.max(axis=1), strict=True)):
        sys.stdout.write(f"{i},{k},{p:.4f}\n")
    if y is not None:
        err.print(f"accuracy {100 * float((classes == y).mean()):.2f} % of {counted(len(y), 'sample')}")


def _samples(file: Path, shape: tuple[int, ...]) -> tuple[Any, Any]:
    from fedpac.data.untrusted import read_image, read_npz

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
    if len(shape) != 3:
        raise ConfigError(f"this model takes samples of shape {shape}, not images; give an .npz file with x")
    channels, height, width = shape
    return read_image(file, "L" if channels == 1 else "RGB", (width, height))[None], None
