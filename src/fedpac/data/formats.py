"""Publishers' own file formats, decoded to uint8 arrays. Each decoder takes every file there is."""

import math
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpac.data.untrusted import File
from fedpac.errors import DataError
from fedpac.randomness import numpy_stream

Bytes: TypeAlias = NDArray[np.uint8]
Arrays: TypeAlias = dict[str, Bytes]  # x_train, y_train, x_test, y_test; source_train, source_test where there is one
Files: TypeAlias = Iterable[File]

CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _idx(file: File, dims: int) -> Bytes:
    """The MNIST family's format: 0, 0, type 8 (uint8), number of dimensions, the sizes, the bytes."""
    name, data = file.name, file.data()
    if data[:4] != bytes([0, 0, 8, dims]):
        raise DataError(f"{name} starts with {data[:4].hex(' ')}, expected {bytes([0, 0, 8, dims]).hex(' ')}.")
    start = 4 + 4 * dims
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    expected = start + math.prod(shape)
    if len(data) != expected or expected == start:
        raise DataError(f"{name} holds {len(data)} bytes, expected {expected} for {' x '.join(map(str, shape))}.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def idx_set(train: str, test: str, transposed: bool = False) -> Callable[[Files], Arrays]:
    def decode(files: Files) -> Arrays:
        arrays: Arrays = {}
        for file in files:
            name = PurePosixPath(file.name).name
            for part, start in (("train", train), ("test", test)):
                if name.startswith(f"{start}-images"):
                    x = _idx(file, 3)
                    arrays[f"x_{part}"] = (x.transpose(0, 2, 1) if transposed else x)[:, None]
                elif name.startswith(f"{start}-labels"):
                    arrays[f"y_{part}"] = _idx(file, 1)
        return _complete(arrays, f"files named {train}-* and {test}-*")

    return decode


def cifar10(files: Files) -> Arrays:
    """Records of 3073 bytes: the label, then the red, green and blue plane, row by row."""
    records: dict[str, Bytes] = {}
    for file in files:
        name = PurePosixPath(file.name).name
        if name.endswith(".bin"):
            data = file.data()
            if not data or len(data) % 3073:
                raise DataError(
                    f"{file.name} holds {len(data)} bytes, expected a multiple of 3073 (10,000 images: 30730000)."
                )
            records[name] = np.frombuffer(data, np.uint8).reshape(-1, 3073)
    train = [records[f"data_batch_{i}.bin"] for i in range(1, 6) if f"data_batch_{i}.bin" in records]
    test = [records["test_batch.bin"]] if "test_batch.bin" in records else []
    if len(train) < 5 or not test:
        raise DataError("the CIFAR-10 archive lacks some of data_batch_1.bin to data_batch_5.bin and test_batch.bin.")
    arrays: Arrays = {}
    for part, rows in (("train", np.concatenate(train)), ("test", test[0])):
        arrays[f"x_{part}"] = np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32)
        arrays[f"y_{part}"] = rows[:, 0].copy()
    return arrays


def cinic10(files: Files) -> Arrays:
    """PNGs in {train,test}/<class>/; names that start with 'cifar10-' come from CIFAR-10, all others from ImageNet."""
    from tqdm import tqdm

    found: dict[str, list[tuple[str, str, Bytes]]] = {"train": [], "test": []}
    for file in tqdm(files, desc="decoding CINIC-10", unit=" images", leave=False, disable=None):
        part, kind, name = ("", "", *PurePosixPath(file.name).parts)[-3:]
        if part not in found or not name.endswith(".png"):
            continue
        if kind not in CINIC_CLASSES:
            raise DataError(f"{file.name}: '{kind}' is not a class of CINIC-10; expected {', '.join(CINIC_CLASSES)}.")
        found[part].append((kind, name, file.pixels((32, 32))))
    arrays: Arrays = {}
    for part, images in found.items():
        if not images:
            raise DataError(f"CINIC-10: there is no PNG under {part}/<class>/.")
        images.sort(key=lambda item: item[:2])  # the same order from a folder and from the archive
        arrays[f"x_{part}"] = np.stack([image.transpose(2, 0, 1) for _, _, image in images])
        arrays[f"y_{part}"] = np.array([CINIC_CLASSES.index(kind) for kind, _, _ in images], np.uint8)
        arrays[f"source_{part}"] = np.array([not name.startswith("cifar10-") for _, name, _ in images], np.uint8)
    return arrays


def _complete(arrays: Arrays, what: str) -> Arrays:
    if lost := {"x_train", "y_train", "x_test", "y_test"} - set(arrays):
        raise DataError(f"the archive lacks some {what}: {', '.join(sorted(lost))} not found.")
    return arrays


@cache
def digits() -> Arrays:
    """scikit-learn's handwritten digits, enlarged from 8 x 8 to 28 x 28; a fixed 500 of them are the test set.

    Read from the package's own file: importing scikit-learn takes seconds, this takes a tenth of one.
    """
    from importlib.util import find_spec

    from PIL import Image

    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("the digits ship with scikit-learn, which is not installed: pip install scikit-learn")
    table = np.loadtxt(Path(spec.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    small = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    # Pillow resizes in whole numbers, hence to the same bytes everywhere
    x = np.stack([np.asarray(Image.fromarray(image).resize((28, 28), Image.Resampling.BICUBIC)) for image in small])
    y = table[:, -1].astype(np.uint8)
    order = numpy_stream(0, "digits test set").permutation(len(y))
    test, train = np.sort(order[:500]), np.sort(order[500:])
    return {"x_train": x[train, None], "y_train": y[train], "x_test": x[test, None], "y_test": y[test]}
