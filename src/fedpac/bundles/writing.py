"""Writing a bundle: all of it or nothing."""

import contextlib
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from fedpac.bundles import onnx
from fedpac.bundles.card import CARD, NO_LICENCE, ONNX, PREPROCESSING, WEIGHTS, Card, File, digests
from fedpac.bundles.networks import Neighbours, combination_of, network_of, tensors_of_predictor
from fedpac.errors import ConfigError, FedpacError
from fedpac.files import explained, write_atomically
from fedpac.methods.base import Which
from fedpac.native import plain
from fedpac.prediction import Predictor


@dataclass(frozen=True)
class Origin:
    """Where a model comes from."""

    client: str
    method: str
    title: str
    which: Which
    network: str | None = None  # what the run's config calls it
    metrics: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)


def write_bundle(
    folder: Path, model: Predictor, network: nn.Module, origin: Origin, licence: str = "", with_onnx: bool = True
) -> Card:
    """The model in a new folder. network: a module of the kind that the method trains."""
    module, combination = combination_of(plain(model.module), plain(network), origin.title)
    kept = replace(model, module=module.eval())
    files: dict[File, bytes] = {WEIGHTS: save(tensors_of_predictor(module))}
    if kept.preprocessing is not None:
        mine = kept.preprocessing.model_copy(update={"absent": {}, "notes": ()})  # nothing of other sites
        kept = replace(kept, preprocessing=mine)
        files[PREPROCESSING] = mine.to_json().encode()
    missing = "" if with_onnx else "not requested"
    if with_onnx:
        try:
            files[ONNX] = onnx.exported(kept, {"client": origin.client, "method": origin.title})
        except (onnx.NoOnnxError, FedpacError) as error:
            missing = str(error)
    notes: tuple[str, ...] = ()
    if isinstance(combination, Neighbours):
        notes = (f"contains the features and labels of {combination.samples:,} training samples of {origin.client}",)
    card = Card(
        client=origin.client, method=origin.method, title=origin.title, which=origin.which,
        network=network_of(network, origin.network), combination=combination, inputs=kept.inputs,
        class_names=kept.class_names, optional=kept.optional, metrics=origin.metrics, provenance=origin.provenance,
        licence=licence or NO_LICENCE, notes=notes, onnx=missing, files=digests(files),
    )  # fmt: skip
    described = (card.model_dump_json(indent=2, exclude_none=True) + "\n").encode()
    _write(folder, {CARD: described, **{str(name): data for name, data in files.items()}})
    return card


def check_free(folder: Path) -> None:
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ConfigError(f"{folder} already exists: choose a new folder for the model")


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Whole or not at all: beside its place first, then moved there."""
    with explained(folder):
        check_free(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(making, ignore_errors=True)
        try:
            making.mkdir()
            for name, data in files.items():
                write_atomically(making / name, data)
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()  # an empty one
            making.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
