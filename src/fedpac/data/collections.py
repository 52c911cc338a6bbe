"""Clients given as data sets of other libraries: torch's `Dataset` objects, Hugging Face's `datasets`, on disk too."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from fedpac.data.clients import Scenario
from fedpac.data.images import AS_THEY_ARE, Pictures
from fedpac.data.own import from_arrays
from fedpac.errors import DataError, unknown
from fedpac.extras import library

LABELS = ("label", "labels", "target", "y", "class")
MOST = 50_000_000  # values of one client that are gathered sample by sample
PARTS = ("train", "test", "validation")


@dataclass(frozen=True)
class Columns:
    """Which of a data set's columns are the samples and the labels; unset, they are looked for."""

    x: str | None = None
    y: str | None = None


def is_collection(client: object) -> bool:
    """Whether a client comes as (train, test) of data sets, or as a folder of one on disk."""
    if isinstance(client, str | Path):
        return True
    parts = list(client.values()) if isinstance(client, Mapping) else client
    return isinstance(parts, Sequence) and len(parts) in (2, 3) and all(map(_is_dataset, parts))


def _is_streamed(client: object) -> bool:
    return isinstance(client, Sequence) and any(isinstance(part, IterableDataset) for part in client)


def _is_dataset(item: object) -> bool:
    return (
        hasattr(item, "__len__") and hasattr(item, "__getitem__") and not isinstance(item, Tensor | np.ndarray | list)
    )


def from_datasets(
    clients: Sequence[Any],
    names: Sequence[str] | None = None,
    *,
    x: str | None = None,
    y: str | None = None,
    images: Pictures | None = None,
    classes: int | None = None,
) -> Scenario:
    """A scenario from data sets of other libraries, for each client one of

    (train, test) or (train, test, validation)   torch Datasets that give (sample, label), or Hugging Face Datasets
    {"train": ..., "test": ...}                  the same by name, such as a Hugging Face DatasetDict
    "folder"                                     a DatasetDict on disk, as its save_to_disk writes it

    x, y      Hugging Face's columns; unset, y is the one called label or target, and x is the other
    images    what is done to images; unset, all must have one size

    Samples are images, numbers of any shape, or tokens: whole numbers, equally many in every sample.
    """
    pictures = images or AS_THEY_ARE
    arrays, found = [], []
    for i, client in enumerate(clients):
        who = names[i] if names is not None else f"client {i}"
        parts = _parts(client, who)
        arrays.append(
            [
                array
                for part, data in parts.items()
                for array in _arrays(data, Columns(x, y), pictures, f"{who}, {part}")
            ]
        )
        found += [_class_names(data, y) for data in parts.values()]
    called = {names for names in found if names}
    if len(called) > 1:
        raise DataError(f"the clients use different class names: {' / '.join(', '.join(c) for c in sorted(called))}")
    class_names = called.pop() if called else ()
    scenario = from_arrays(arrays, (len(class_names) or None) if classes is None else classes, names)
    held = scenario.clients[0].train.pool.x.dtype == torch.uint8
    return replace(scenario, name="own data sets", class_names=class_names, images=pictures if held else None)


def scenario_of(clients: Sequence[Any], classes: int | None = None) -> Scenario:
    """A scenario from whatever clients are given as."""
    given: object = clients
    if isinstance(given, Sequence) and any(map(_is_streamed, given)):
        raise DataError("an IterableDataset has no length, so no sample can be drawn; pass a data set with one")
    if isinstance(given, Sequence) and given and all(map(is_collection, given)):
        return from_datasets(clients, classes=classes)
    return from_arrays(clients, classes)


def _parts(client: object, who: str) -> dict[str, Any]:
    if isinstance(client, str | Path):
        if not Path(client).is_dir():
            raise DataError(f"{who}: there is no folder {client}")
        try:
            client = library("datasets", "datasets").load_from_disk(str(client))
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise DataError(f"{who}: {client} is not a data set written by save_to_disk: {error}") from None
    if isinstance(client, Mapping):
        parts = {part: client[part] for part in PARTS if part in client}
    elif isinstance(client, Sequence):
        parts = dict(zip(PARTS, client, strict=False))
    else:
        parts = {}
    if not {"train", "test"} <= set(parts):
        held = ", ".join(map(str, client)) if isinstance(client, Mapping) else f"a {type(client).__name__}"
        raise DataError(f"{who}: expected the splits train and test (and optionally validation); found {held}")
    return parts


def _arrays(data: Any, columns: Columns, pictures: Pictures, who: str) -> tuple[Tensor, Tensor]:
    """x and y of all samples."""
    if isinstance(data, torch.utils.data.TensorDataset) and len(data.tensors) == 2:
        return data.tensors[0], data.tensors[1]
    if not len(data):
        raise DataError(f"{who}: there are no samples.")
    samples: list[Tensor] = []
    labels: list[int | float] = []
    held = 0
    for sample, label in _items(data, columns, who):
        samples.append(_tensor(sample, pictures, who))
        labels.append(_label(label, f"{who}: sample {len(labels)}"))
        held += samples[-1].numel()
        if samples[-1].shape != samples[0].shape:
            raise DataError(
                f"{who}: sample {len(samples) - 1} has shape {tuple(samples[-1].shape)}, those before it "
                f"{tuple(samples[0].shape)}; resize images with images=Pictures(size=...), pad tokens"
            )
        if held > MOST * max(1, samples[0].element_size()):
            raise DataError(f"{who}: more than {MOST:,} values; pass arrays instead, which are not read one by one")
    return torch.stack(samples), torch.as_tensor(labels)


def _items(data: Any, columns: Columns, who: str) -> Iterator[tuple[Any, Any]]:
    names: tuple[str, str] | None = None
    for i in range(len(data)):
        item = data[i]
        if isinstance(item, Mapping):
            names = names or _names(list(item), columns, who)
            yield item[names[0]], item[names[1]]
        elif isinstance(item, Sequence) and len(item) == 2:
            yield item[0], item[1]
        else:
            raise DataError(
                f"{who}: sample {i} is a {type(item).__name__}; expected (sample, label), or columns by name"
            )


def _names(columns: list[str], wanted: Columns, who: str) -> tuple[str, str]:
    for name in (wanted.x, wanted.y):
        if name is not None and name not in columns:
            raise DataError(f"{who}: {unknown('column', name, columns)}")
    y = wanted.y or next((name for name in LABELS if name in columns), None)
    others = [name for name in columns if name != y]
    if y is None or (wanted.x is None and len(others) != 1):
        raise DataError(f"{who}: name the columns of samples and labels with x= and y=; found {', '.join(columns)}")
    return wanted.x or others[0], y


def _tensor(sample: Any, pictures: Pictures, who: str) -> Tensor:
    from PIL import Image

    image = isinstance(sample, Image.Image) or (isinstance(sample, np.ndarray) and sample.dtype == np.uint8)
    if image:
        sample = pictures.of(sample, who).transpose(2, 0, 1)
    try:
        return torch.as_tensor(sample)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{who}: a sample is a {type(sample).__name__}, not numbers: {error}") from None


def _label(label: Any, who: str) -> int | float:
    value = label.item() if hasattr(label, "item") and np.size(label) == 1 else label
    if not isinstance(value, int | float):
        what = f"'{value[:40]}'" if isinstance(value, str) else f"a {type(value).__name__}"
        raise DataError(f"{who} has the label {what}; expected a number: classes are 0, 1, 2, ...")
    return value


def _class_names(data: Any, y: str | None) -> tuple[str, ...]:
    """As Hugging Face's ClassLabel or torchvision's folders have them."""
    features = getattr(data, "features", None)
    if isinstance(features, Mapping):
        column = y or next((name for name in LABELS if name in features), None)
        return tuple(getattr(features.get(column), "names", None) or ())
    return tuple(map(str, getattr(data, "classes", None) or ()))
