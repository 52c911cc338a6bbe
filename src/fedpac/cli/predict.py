"""fedpac predict."""

from __future__ import annotations

import csv
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.markup import escape

from fedpac.cli.app import USE, DataDir, OwnMethod, OwnNetwork, Trust, WhichModel, app, counted, err, examples
from fedpac.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedpac.data.preprocessing import Preprocessing
    from fedpac.data.tables import Table
    from fedpac.prediction import Predictor

TABLES = (".csv", ".parquet")


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "fedpac predict north-model rows.csv",
        "fedpac predict model x.npz --out classes.csv",
        "fedpac predict runs/fedpac-digits-seed0 --client 3 images.npz",
    ),
)
def predict(
    folder: Annotated[Path, typer.Argument(help="A bundle from 'fedpac export', or a run folder.", show_default=False)],
    file: Annotated[
        Path,
        typer.Argument(
            help="A CSV or Parquet table of raw rows, an .npz file with x (and optionally y), or images.",
            show_default=False,
        ),
    ],
    client: Annotated[str | None, typer.Option(help="For a run folder: client name or number. Default: 0.")] = None,
    target: Annotated[
        Path | None, typer.Option("--out", help="The CSV file to write. Default: print it.", show_default=False)
    ] = None,
    which: WhichModel = None,
    data_dir: DataDir = None,
    method: OwnMethod = None,
    network: OwnNetwork = None,
    trust: Trust = False,
) -> None:
    """Predict the class and all class probabilities of every sample, as CSV.

    A bundle needs neither the run nor its data.
    """
    model = _model(folder, client, which, data_dir, method, network, trust)
    if not file.exists():
        raise DataError(f"there is no file {file}")
    samples = _samples(file, model)
    if not model.class_names:
        values = model.predict(samples.x)
        with _stream(target) as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow([samples.heading, _value_name(model)])
            writer.writerows([samples.name(i), f"{value:.6g}"] for i, value in enumerate(values))
        _tell_errors(values, samples.y)
        return
    proba = model.predict_proba(samples.x)
    with _stream(target) as stream:
        _write(stream, model.class_names, proba, samples)
    if samples.y is not None and len(samples.y):
        right = [k == int(label) for k, label in zip(proba.argmax(axis=1), samples.y, strict=True) if label >= 0]
        if right:
            err.print(f"accuracy {100 * sum(right) / len(right):.2f} % of {counted(len(right), 'sample')}")


@dataclass(frozen=True)
class Samples:
    x: Any
    y: Any = None  # classes or numbers, where the file has them; -1 for a sample without a class
    files: tuple[str, ...] = ()  # the names of images

    @property
    def heading(self) -> str:
        return "image" if self.files else "row"

    def name(self, i: int) -> str | int:
        return self.files[i] if self.files else i


def _value_name(model: Predictor) -> str:
    return model.preprocessing.target if model.preprocessing is not None else "value"


def _tell_errors(values: NDArray[Any], y: Any) -> None:
    """How far the numbers are from those that the file has, where it has any."""
    import numpy as np

    from fedpac.metrics import OF_NUMBERS

    if y is None or y.dtype.kind not in "iuf" or not (there := np.isfinite(y)).any():
        return
    found = {name: metric.value(y[there], values[there]) for name, metric in OF_NUMBERS.items()}
    said = [f"{name} {value:.4g}" for name, value in found.items() if value is not None and name != "loss"]
    err.print(f"{', '.join(said)} of {counted(int(there.sum()), 'sample')}")


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
            raise ConfigError(f"{folder} is one client's model: {', '.join(named)} only applies to runs")
        return load_model(folder, trust=trust)
    from fedpac.api import load_run

    run = load_run(folder, data_dir, method, trust, model=network)
    return run.model(client or "0", which)  # type: ignore[arg-type]


def _stream(target: Path | None) -> AbstractContextManager[TextIO]:
    return open(target, "w", newline="") if target else nullcontext(sys.stdout)


def _write(stream: TextIO, class_names: tuple[str, ...], proba: NDArray[np.float64], samples: Samples) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([samples.heading, "class", *(f"p({name})" for name in class_names)])
    for i, row in enumerate(proba):
        writer.writerow([samples.name(i), class_names[int(row.argmax())], *(f"{p:.6f}" for p in row)])


def _samples(file: Path, model: Predictor) -> Samples:
    import numpy as np

    from fedpac.data.images import image_files
    from fedpac.data.untrusted import read_npz

    shape = model.inputs.shape
    if file.suffix.lower() in TABLES or (file.is_dir() and model.preprocessing is not None):
        from fedpac.data.tables import read_table

        if model.preprocessing is None:
            raise DataError(
                f"{file} is a table, but this model takes samples of shape {shape}: pass an .npz file with x"
            )
        table = read_table(file, model.preprocessing.missing)
        return Samples(table, _targets(table, model.preprocessing))
    if file.suffix == ".npz":
        arrays = read_npz(file)
        if "x" not in arrays:
            raise DataError(f"{file} has the arrays {', '.join(arrays)}; expected x, and optionally y")
        x, y = arrays["x"], arrays.get("y")
        if y is not None and y.shape != x.shape[:1]:
            raise DataError(f"{file}: y has shape {y.shape}, expected one label for each of the {len(x)} samples of x")
        return Samples(x, y)
    files = image_files(file) if file.is_dir() else [file]
    if not files:
        raise DataError(f"{file} contains no PNG or JPEG images")
    images = np.concatenate([model.inputs.read_image(path) for path in files])
    return Samples(images, files=tuple(path.name for path in files))


def _targets(table: Table, preprocessing: Preprocessing) -> Any:
    """What is to be predicted, where the table has it: a row whose outcome is still open is predicted all the same."""
    if preprocessing.target not in table:
        return None
    try:
        return preprocessing.labels(table)
    except DataError as error:
        err.print(f"[yellow]not compared with the file's own values: {escape(str(error))}[/]", soft_wrap=True)
        return None
