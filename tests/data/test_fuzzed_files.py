"""Damaged data files of every format: refused with a DataError or read, but nothing else.

A file is damaged as it lies there, or inside, so that its packing and its checksums are right and what it holds is not.
"""

import gzip
import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats import idx, labels, png
from PIL import Image

from fedpac.data.config import DataConfig
from fedpac.data.datasets import load
from fedpac.data.formats import CINIC_CLASSES
from fedpac.data.scenario import build
from fuzzing import budget, damaged, fuzz
from hostile import (
    GOOD,
    archive,
    npy,
    read_cifar,
    read_cinic,
    read_client,
    read_emnist,
    read_fashion,
    read_owners,
    read_picture,
)

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 3)), labels(12, 3)
PIXELS = RNG.integers(256, size=(32, 32, 3), dtype=np.uint8)

Members = dict[str, bytes]
Pack = Callable[[Members], bytes]


def tarred(members: Members) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def jpeg(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "jpeg")
    return buffer.getvalue()


def gzipped(members: Members) -> bytes:
    (data,) = members.values()
    return gzip.compress(data, 1)


def alone(members: Members) -> bytes:
    (data,) = members.values()
    return data


def arrays(**named: np.ndarray) -> Members:
    return {f"{name}.npy": npy(array) for name, array in named.items()}


stored = partial(archive, method=zipfile.ZIP_STORED)
EMNIST = {
    f"gzip/emnist-byclass-{part}-{kind}-ubyte.gz": idx(content)
    for part in ("train", "test")
    for kind, content in (("images-idx3", np.zeros((9, 28, 28), np.uint8)), ("labels-idx1", labels(9, 62)))
}
BATCHES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
CIFAR = {f"cifar-10-batches-bin/{name}": bytes([3]) + PIXELS.tobytes() for name in BATCHES}
CINIC = {f"./{part}/{kind}/cifar10-1.png": png(PIXELS) for part in ("train", "test") for kind in CINIC_CLASSES[:3]}

# what reads the file, what it holds, and how that is packed: from the inside out, each of which may be damaged
FILES: dict[str, tuple[Callable[[Path, bytes], None], Members, tuple[Pack, ...]]] = {
    "npz": (read_client, arrays(x=X, y=Y), (archive,)),
    "stored npz": (read_client, arrays(x_train=X, y_train=Y, x_test=X, y_test=Y), (stored,)),
    "split npz": (read_client, arrays(x=X, y=Y, split=np.array(["train", "test"] * 6)), (archive,)),
    "npz of owners": (read_owners, arrays(x=X, y=Y, writer=Y, writer_id=np.array(["a", "b", "c"])), (stored,)),
    "npz of images": (read_client, arrays(x=PIXELS[None].repeat(12, 0), y=Y), (archive,)),
    "png": (read_picture, {"": png(RNG.integers(256, size=(6, 4), dtype=np.uint8))}, (alone,)),
    "jpeg": (read_picture, {"": jpeg(PIXELS[:6, :4])}, (alone,)),
    "idx": (read_fashion, {"": gzip.decompress(next(iter(GOOD["fashion-mnist"].values())))}, (gzipped,)),
    "emnist": (read_emnist, EMNIST, (stored,)),
    "cifar10": (read_cifar, CIFAR, (tarred, gzip.compress)),  # type: ignore[dict-item]
    "cinic10": (read_cinic, CINIC, (tarred, gzip.compress)),  # type: ignore[dict-item]
}


def read_damaged(name: str, folder: Path, rng: np.random.Generator) -> None:
    reader, members, packs = FILES[name]
    layer = rng.integers(len(packs) + 1)
    if layer == 0:
        chosen = list(members)[rng.integers(len(members))]
        members = {**members, chosen: damaged(members[chosen], rng)}
    data: Any = members
    for i, pack in enumerate(packs, start=1):
        data = pack(data)
        data = damaged(data, rng) if i == layer else data
    read_afresh(reader, folder, data)


def read_afresh(reader: Callable[[Path, bytes], None], folder: Path, data: bytes) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    reader(folder, data)


@pytest.mark.parametrize("name", FILES)
@budget(short=120, long=3000)
def test_damaged_files(name, cases, tmp_path):
    tally = fuzz(partial(read_damaged, name, tmp_path / "case"), cases, seed=cases)
    assert tally.refused > cases / 10


# ---------------------------------------------------------------- arrays of every kind


KINDS = ("?", "b", "B", "<i2", ">i4", "<u4", "<i8", "<u8", "e", "f", ">f8", "g", "F", "D", "U3", "S3", "V5", "V0", "U0",
         "M8[D]", "m8[s]", "i4,f4", "(2,)i4", "O")  # fmt: skip
EXTREMES = (0, 1, -1, 2**31, 2**63 - 1, np.inf, -np.inf, np.nan, 1e300)


def odd_array(rng: np.random.Generator) -> np.ndarray:
    """Any dtype, any number of dimensions, perhaps empty, perhaps with values at the end of the range."""
    shape = tuple(rng.choice([0, 1, 2, 3, 12, 12, 12], size=rng.integers(5)))
    kind = np.dtype(KINDS[rng.integers(len(KINDS))])
    if kind.hasobject or not kind.itemsize or 0 in shape:
        return np.zeros(shape, kind)
    array = np.frombuffer(rng.bytes(kind.itemsize * int(np.prod(shape))), kind).reshape((*shape, *kind.shape))
    if kind.kind in "iuf" and rng.random() < 0.7:
        with np.errstate(all="ignore"):
            array = rng.choice([*range(6), EXTREMES[rng.integers(len(EXTREMES))]], size=shape).astype(kind)
    return array


def read_odd_arrays(folder: Path, rng: np.random.Generator) -> None:
    held: dict[str, Any] = {"x": X, "y": Y}
    if rng.random() < 0.3:
        held = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y}
    names = [*held, "split", "writer", "writer_id", "owner", "owner_id"]
    for name in rng.choice(names, size=rng.integers(1, 4), replace=False):
        held[str(name)] = odd_array(rng)
    buffer = io.BytesIO()
    np.savez(buffer, **held)
    read_afresh((read_client, read_owners, read_dealt)[rng.integers(3)], folder, buffer.getvalue())


def read_dealt(folder: Path, data: bytes) -> None:
    (folder / "a.npz").write_bytes(data)
    build(DataConfig(scenario="dirichlet", path=folder / "a.npz", clients=2, min_samples=1), seed=0)


@budget(short=1000, long=50_000)
def test_arrays_of_every_kind(cases, tmp_path):
    tally = fuzz(partial(read_odd_arrays, tmp_path / "case"), cases, seed=cases)
    assert tally.refused > cases / 4
    assert tally.accepted > cases / 50


# ---------------------------------------------------------------- the cache of decoded arrays


def load_from_damaged_cache(folder: Path, rng: np.random.Generator) -> None:
    """Loaded a second time after a cached file was damaged; what comes is right or close to it, never an error."""
    if not folder.exists():
        folder.mkdir()
        for file, content in GOOD["fashion-mnist"].items():
            (folder / "fashion-mnist").mkdir(exist_ok=True)
            (folder / "fashion-mnist" / file).write_bytes(content)
        load("fashion-mnist", folder)
    files = sorted((folder / "fashion-mnist" / "decoded").glob("*/*"))
    chosen = files[rng.integers(len(files))]
    chosen.write_bytes(damaged(chosen.read_bytes(), rng))
    data = load("fashion-mnist", folder)
    assert data.train.x.shape[1:] == (1, 28, 28)
    assert len(data.train.x) == len(data.train.y)


@budget(short=200, long=5000)
def test_a_damaged_cache_is_no_obstacle(cases, tmp_path):
    assert fuzz(partial(load_from_damaged_cache, tmp_path / "sets"), cases, seed=cases).refused == 0
