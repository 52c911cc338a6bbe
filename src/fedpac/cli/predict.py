"""fedpac predict."""

from __future__ import annotations

import csv
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from fedpac.cli.app import DataDir, OwnMethod, OwnNetwork, Trust, WhichModel, app, counted, err
from fedpac.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedpac.prediction import Predictor

TABLES = (".csv", ".parquet")


@app.command(
    epilog="Examples:  fedpac predict north-model rows.csv  |  fedpac predict model x.npz --out classes.csv  |  "
    "fedpac predict runs/fedpac-digits-seed0 --client 3 images.npz"
)
def predict(
    folder: Annotated[Path, typer.Argument(help="A bundle of 'fedpac export', or a run's folder.", show_default=False)],
    file: Annotated[
        Path,
        typer.Argument(
            help="A CSV or Parquet table of raw rows, an .npz file with x (perhaps y), an image, or a folder of them.",
            show_default=False,
        ),
    ],
    client: Annotated[str | None, typer.Option(help="Of a run: whose model, by name or number. Default: 0.")] = None,
    target: Annotated[
        Path | None, typer.Option("--out", help="The CSV file to write. Default: the terminal.", show_default=False)
    ] = None,
    which: WhichModel = None,
    data_dir: DataDir = None,
    method: OwnMethod = None,
    network: OwnNetwork = None,
    trust: Trust = False,
) -> None:
    """Predict: a CSV line with the class and all probabilities for every sample.

    A bundle needs neither the run nor its data.
    """
    model = _model(folder, client, which, data_dir, method, network, trust)
    if not file.exists():
        raise DataError(f"there is no file {file}")
    x, y = _samples(file, model)
    if not model.class_names:
        with _stream(target) as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["row", "value"])
            writer.writerows([i, f"{value:.6g}"] for i, value in enumerate(model.predict(x)))
        return
    proba = model.predict_proba(x)
    with _stream(target) as stream:
        _write(stream, model.class_names, proba)
    if y is not None and len(y):
        right = [k == int(label) for k, label in zip(proba.argmax(axis=1), y, strict=True) if label >= 0]
        if right:
            err.print(f"accuracy {100 * sum(right) / len(right):.2f} % of {counted(len(right), 'sample')}")


def _model(
    folder: Path,
    client: str | None,
    which: str | None,
    data_dir: Path | None,
    method: str | None,
    network: str | None,
    trust: bool,
) -> Predictor:
    from fedpac.bundles import is_bundle, load_model

    if is_bundle(folder):
        given = {"--client": client, "--which": which, "--data-dir": data_dir, "--method": method, "--model": network}
        if named := [flag for flag, value in given.items() if value is not None]:
            raise ConfigError(f"{folder} is one client's model: {', '.join(named)} is for runs")
        return load_model(folder, trust=trust)
    from fedpac.api import load_run

    run = load_run(folder, data_dir, method, trust, model=network)
    return run.model(client or "0", which)  # type: ignore[arg-type]


def _stream(target: Path | None) -> AbstractContextManager[TextIO]:
    return open(target, "w", newline="") if target else nullcontext(sys.stdout)


def _write(stream: TextIO, class_names: tuple[str, ...], proba: NDArray[np.float64]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["row", "class", *(f"p({name})" for name in class_names)])
    for i, row in enumerate(proba):
        writer.writerow([i, class_names[int(row.argmax())], *(f"{p:.6f}" for p in row)])


def _samples(file: Path, model: Predictor) -> tuple[Any, Any]:
    """Samples, and their classes where the file has them; -1 for one that has none."""
    import numpy as np

    from fedpac.data.own import IMAGES
    from fedpac.data.untrusted import read_npz

    shape = model.inputs.shape
    if file.suffix.lower() in TABLES or (file.is_dir() and model.preprocessing is not None):
        from fedpac.data.tables import read_table

        if model.preprocessing is None:
            raise DataError(f"{file} is a table; this model takes samples of shape {shape}: give an .npz file with x")
        table = read_table(file, model.preprocessing.missing)
        return table, model.preprocessing.labels(table) if model.preprocessing.target in table else None
    if file.suffix == ".npz":
        arrays = read_npz(file)
        if "x" not in arrays:
            raise DataError(f"{file} has the arrays {', '.join(arrays)}; expected x, and perhaps y")
        x, y = arrays["x"], arrays.get("y")
        if y is not None and y.shape != x.shape[:1]:
            raise DataError(f"{file}: y has shape {y.shape}, expected one label for each of the {len(x)} samples of x")
        return x, y
    if file.is_dir():
        files = sorted(path for path in file.iterdir() if path.suffix.lower() in IMAGES)
        if not files:
            raise DataError(f"{file} has no PNG or JPEG images in it")
        return np.concatenate([model.inputs.read_image(path) for path in files]), None
    return model.inputs.read_image(file), None
