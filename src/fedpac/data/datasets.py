"""The data sets, read from their publishers' own files.

A set is looked for under `<data_dir>/<name>/`; what is not there is downloaded. It is decoded once into uint8 arrays
beside its files, which are then memory-mapped: a second start takes milliseconds, and processes share the pages.

    digits          comes with scikit-learn, no files                        1,797 images, 10 classes
    fashion-mnist   {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz          60,000 + 10,000
    cifar10         cifar-10-batches-bin/*.bin or cifar-10-binary.tar.gz     50,000 + 10,000
    emnist          emnist-byclass-{train,test}-*-ubyte.gz or gzip.zip       697,932 + 116,323, 62 classes
    cinic10         {train,test}/<class>/*.png or CINIC-10.tar.gz            90,000 + 90,000

CINIC-10's third part, `valid`, is left alone: the paper trains on clients' small shares of `train` and tests on `test`.
"""

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpac.data.clients import Pool
from fedpac.data.download import Download, fetch
from fedpac.errors import DataError, unknown
from fedpac.randomness import numpy_stream

Bytes = NDArray[np.uint8]
Arrays = dict[str, Bytes]  # x_train, y_train, x_test, y_test; and source_train, source_test where images have a source

CACHE_VERSION = 1
CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True, eq=False)
class Dataset:
    name: str
    train: Pool
    test: Pool
    classes: int
    note: str  # why numbers on these files may not be set beside published ones; empty if they may
    source: tuple[Tensor, Tensor] | None = None  # CINIC-10, (train, test): 0 from CIFAR-10, 1 from ImageNet

    @property
    def standin(self) -> bool:
        return bool(self.note)


@dataclass(frozen=True, eq=False)
class Recipe:
    """How to get and read one data set, and what the paper does with it."""

    wanted: tuple[str, ...]  # files or folders that hold the data
    downloads: tuple[Download, ...]  # either the wanted files themselves or an archive of them
    decode: Callable[[Iterable[tuple[str, bytes]]], Arrays]
    images: tuple[int, int]  # as published: train, test
    shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    samples: int = 600  # per client
    test_samples: int = 300
    augment: bool = False
    dominant: tuple[tuple[int, ...], ...] | None = None  # where the classes have groups of their own


def data_root(data_dir: Path | str | None = None) -> Path:
    """The argument, else the environment's FEDPAC_DATA, else the user's cache folder."""
    if chosen := data_dir or os.environ.get("FEDPAC_DATA"):
        return Path(chosen).expanduser()
    return _user_cache()


def load(name: str, data_dir: Path | str | None = None) -> Dataset:
    """A data set by name; downloaded and decoded if need be."""
    recipe = recipe_of(name)
    arrays = _cached(recipe, data_root(data_dir) / name) if recipe.wanted else recipe.decode(())
    pools = {
        part: Pool(_tensor(arrays[f"x_{part}"]), _tensor(arrays[f"y_{part}"]).long(), recipe.mean, recipe.std)
        for part in ("train", "test")
    }
    got = len(pools["train"].y), len(pools["test"].y)
    published = recipe.images
    note = (
        ""
        if got == published
        else f"stand-in: {got[0]} + {got[1]} images, published are {published[0]} + {published[1]}"
    )
    source = (_tensor(arrays["source_train"]), _tensor(arrays["source_test"])) if "source_train" in arrays else None
    return Dataset(name, pools["train"], pools["test"], recipe.classes, note, source)


def present(name: str, data_dir: Path | str | None = None) -> bool:
    """Whether load() finds all files where it looks for them, so that it downloads nothing."""
    recipe, folder = recipe_of(name), data_root(data_dir) / name
    loose = _loose(recipe.wanted, folder)
    return len(loose) == len(recipe.wanted) or all((folder / d.name).exists() for d in recipe.downloads)


def recipe_of(name: str) -> Recipe:
    if name not in RECIPES:
        raise DataError(unknown("data set", name, RECIPES))
    return RECIPES[name]


# ---------------------------------------------------------------- files: find, download, read


def _sources(recipe: Recipe, folder: Path) -> list[Path]:
    """The files to read, after downloading what is missing."""
    loose = _loose(recipe.wanted, folder)
    if loose and (lost := set(recipe.wanted) - set(loose) - {d.name for d in recipe.downloads}):
        where = next(iter(loose.values())).parent
        raise DataError(
            f"{where / min(lost)} is missing, the other files are there. Add it, or remove them all to download."
        )
    if len(loose) == len(recipe.wanted):
        return [loose[name] for name in recipe.wanted]
    found = [loose.get(d.name, folder / d.name) for d in recipe.downloads]
    return [path if path.exists() else fetch(d, folder) for path, d in zip(found, recipe.downloads, strict=True)]


def _loose(wanted: tuple[str, ...], folder: Path) -> dict[str, Path]:
    """Those of the wanted names that lie in the folder or one below, unpacked or not."""
    places = [folder, *sorted(p for p in folder.glob("*") if p.is_dir() and p.name not in wanted)]
    spellings = {name: (name, name.removesuffix(".gz")) for name in wanted}
    found = {n: place / s for place in places for n, both in spellings.items() for s in both if (place / s).exists()}
    return {n: found[n] for n in wanted if n in found}


def _contents(sources: list[Path]) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of every file in files, folders and archives."""
    for path in sources:
        try:
            if path.is_dir():
                for file in sorted(path.rglob("*.png")):
                    yield str(file), file.read_bytes()
            elif path.suffix == ".zip":
                with zipfile.ZipFile(path) as archive:
                    for name in archive.namelist():
                        yield f"{path}/{name}", archive.read(name)
            elif path.name.endswith(".tar.gz"):
                with tarfile.open(path) as tar:
                    for member in tar:
                        if file_in_tar := tar.extractfile(member):
                            yield f"{path}/{member.name}", file_in_tar.read()
            else:
                yield str(path), path.read_bytes()
        except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{path} cannot be read ({error}). Replace it, or delete it to download it again."
            ) from error


def _user_cache() -> Path:
    import pooch

    return Path(pooch.os_cache("fedpac"))


# ---------------------------------------------------------------- the cache of decoded arrays


def _cached(recipe: Recipe, folder: Path) -> Arrays:
    """Memory-mapped arrays; decoded first if there are none yet or the files have changed since."""
    sources = _sources(recipe, folder)
    name = f"v{CACHE_VERSION}-{_fingerprint(sources)}"
    home = _writable(folder / "decoded") or _user_cache() / folder.name / "decoded"
    try:
        return _open(home / name)
    except FileNotFoundError:
        pass
    except (OSError, ValueError):  # damaged: its place must be free for a new one
        shutil.rmtree(home / name)
    arrays = recipe.decode(_contents(sources))
    _check(arrays, recipe, folder)
    try:
        _save(arrays, home / name)
    except OSError as error:
        size = sum(array.nbytes for array in arrays.values()) // 1_000_000
        raise DataError(f"{home}: {size} MB of decoded images could not be written ({error}).") from error
    return _open(home / name)


def _save(arrays: Arrays, folder: Path) -> None:
    """All or nothing, also when several processes do it at once: the first one's arrays stay, all would be the same."""
    part = folder.with_name(f"part-{uuid4().hex}")
    part.mkdir(parents=True)
    try:
        for key, array in arrays.items():
            np.save(part / key, array)
        try:
            os.replace(part, folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    for stale in folder.parent.glob("v*"):
        if stale.name != folder.name:
            shutil.rmtree(stale, ignore_errors=True)


def _fingerprint(sources: list[Path]) -> str:
    """Changes when a source does. Of a folder the class folders' dates count: its 90,000 files are too many to ask."""
    known = []
    for path in sources:
        for p in sorted(path.iterdir()) if path.is_dir() else [path]:
            known.append(f"{path.name}/{p.name}/{0 if p.is_dir() else p.stat().st_size}/{p.stat().st_mtime_ns}")
    return hashlib.blake2b("\n".join(known).encode(), digest_size=8).hexdigest()


def _writable(folder: Path) -> Path | None:
    return folder if os.access(folder if folder.exists() else folder.parent, os.W_OK) else None


def _open(folder: Path) -> Arrays:
    """Copy-on-write maps: torch takes them as they are, and nothing written to a tensor can reach the file."""
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    arrays: Arrays = {file.stem: np.load(file, mmap_mode="c") for file in folder.glob("*.npy")}
    if not {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        raise ValueError("incomplete")
    return arrays


def _tensor(array: Bytes) -> Tensor:
    return torch.from_numpy(array)


def _check(arrays: Arrays, recipe: Recipe, folder: Path) -> None:
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.shape[1:] != recipe.shape:
            raise DataError(
                f"{folder}: {part} images are {x.shape[1:]} (channels, height, width), expected {recipe.shape}."
            )
        if len(x) != len(y):
            raise DataError(f"{folder}: {len(x)} {part} images but {len(y)} labels.")
        if not len(y):
            raise DataError(f"{folder}: there are no {part} images.")
        if y.max() >= recipe.classes:
            at = int((y >= recipe.classes).argmax())
            raise DataError(f"{folder}: {part} label {at} is {y[at]}, allowed are 0 to {recipe.classes - 1}.")


# ---------------------------------------------------------------- publishers' formats


def _idx(name: str, data: bytes, dims: int) -> Bytes:
    """The MNIST family's format: 0, 0, type 8 (uint8), number of dimensions, the sizes, the bytes; usually gzipped."""
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} is damaged or cut short ({error}).") from error
    if data[:4] != bytes([0, 0, 8, dims]):
        raise DataError(f"{name} starts with {data[:4].hex(' ')}, expected {bytes([0, 0, 8, dims]).hex(' ')}.")
    start = 4 + 4 * dims
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    expected = start + int(np.prod(shape))
    if len(data) != expected:
        raise DataError(f"{name} holds {len(data)} bytes, expected {expected} for {' x '.join(map(str, shape))}.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _idx_set(train: str, test: str, transposed: bool = False) -> Callable[[Iterable[tuple[str, bytes]]], Arrays]:
    def decode(files: Iterable[tuple[str, bytes]]) -> Arrays:
        arrays: Arrays = {}
        for name, data in files:
            file = PurePosixPath(name).name
            for part, start in (("train", train), ("test", test)):
                if file.startswith(f"{start}-images"):
                    x = _idx(name, data, 3)
                    arrays[f"x_{part}"] = np.ascontiguousarray(x.transpose(0, 2, 1) if transposed else x)[:, None]
                elif file.startswith(f"{start}-labels"):
                    arrays[f"y_{part}"] = _idx(name, data, 1)
        return _complete(arrays, f"files named {train}-* and {test}-*")

    return decode


def _cifar10(files: Iterable[tuple[str, bytes]]) -> Arrays:
    """Records of 3073 bytes: the label, then the red, green and blue plane, row by row."""
    records: dict[str, Bytes] = {}
    for name, data in files:
        file = PurePosixPath(name).name
        if file.endswith(".bin"):
            if not data or len(data) % 3073:
                raise DataError(
                    f"{name} holds {len(data)} bytes, expected a multiple of 3073 (10,000 images: 30730000)."
                )
            records[file] = np.frombuffer(data, np.uint8).reshape(-1, 3073)
    train = [records[f"data_batch_{i}.bin"] for i in range(1, 6) if f"data_batch_{i}.bin" in records]
    test = [records["test_batch.bin"]] if "test_batch.bin" in records else []
    if len(train) < 5 or not test:
        raise DataError("the CIFAR-10 archive has not all of data_batch_1.bin to data_batch_5.bin and test_batch.bin.")
    arrays: Arrays = {}
    for part, rows in (("train", np.concatenate(train)), ("test", test[0])):
        arrays[f"x_{part}"] = np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32)
        arrays[f"y_{part}"] = rows[:, 0].copy()
    return arrays


def _cinic10(files: Iterable[tuple[str, bytes]]) -> Arrays:
    """PNGs in {train,test}/<class>/; names that start with 'cifar10-' come from CIFAR-10, all others from ImageNet."""
    from PIL import Image, UnidentifiedImageError
    from tqdm import tqdm

    found: dict[str, list[tuple[str, str, Bytes]]] = {"train": [], "test": []}
    for name, data in tqdm(files, desc="decoding CINIC-10", unit=" images", leave=False, disable=None):
        part, kind, file = ("", "", *PurePosixPath(name).parts)[-3:]
        if part not in found or not file.endswith(".png"):
            continue
        if kind not in CINIC_CLASSES:
            raise DataError(f"{name}: '{kind}' is not a class of CINIC-10; expected {', '.join(CINIC_CLASSES)}.")
        try:
            image = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise DataError(f"{name} is not a readable PNG ({error}).") from error
        if image.shape != (32, 32, 3):
            raise DataError(f"{name} is {image.shape[1]} x {image.shape[0]} pixels, expected 32 x 32.")
        found[part].append((kind, file, image))
    arrays: Arrays = {}
    for part, images in found.items():
        if not images:
            raise DataError(f"CINIC-10: there is no PNG under {part}/<class>/.")
        images.sort(key=lambda item: item[:2])  # the same order from a folder and from the archive
        arrays[f"x_{part}"] = np.stack([image.transpose(2, 0, 1) for _, _, image in images])
        arrays[f"y_{part}"] = np.array([CINIC_CLASSES.index(kind) for kind, _, _ in images], np.uint8)
        arrays[f"source_{part}"] = np.array([not file.startswith("cifar10-") for _, file, _ in images], np.uint8)
    return arrays


def _complete(arrays: Arrays, what: str) -> Arrays:
    if lost := {"x_train", "y_train", "x_test", "y_test"} - set(arrays):
        raise DataError(f"the archive has not all {what}: {', '.join(sorted(lost))} not found.")
    return arrays


@cache
def _digits() -> Arrays:
    """scikit-learn's handwritten digits, enlarged from 8 x 8 to 28 x 28; a fixed 500 of them are the test set.

    Read from the package's own file: importing scikit-learn takes seconds, this takes a tenth of one.
    """
    from importlib.util import find_spec

    from PIL import Image

    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    table = np.loadtxt(Path(spec.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    small = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    # Pillow resizes in whole numbers, hence to the same bytes everywhere
    x = np.stack([np.asarray(Image.fromarray(image).resize((28, 28), Image.Resampling.BICUBIC)) for image in small])
    y = table[:, -1].astype(np.uint8)
    order = numpy_stream(0, "digits test set").permutation(len(y))
    test, train = np.sort(order[:500]), np.sort(order[500:])
    return {"x_train": x[train, None], "y_train": y[train], "x_test": x[test, None], "y_test": y[test]}


# ---------------------------------------------------------------- the registry


def _mnist_like(**settings: Any) -> Recipe:
    return Recipe(shape=(1, 28, 28), mean=(0.1307,), std=(0.3081,), **settings)


_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}

RECIPES: dict[str, Recipe] = {
    "digits": Recipe(
        wanted=(),
        downloads=(),
        decode=lambda files: _digits(),
        images=(1297, 500),
        shape=(1, 28, 28),
        classes=10,
        mean=(0.3095,),
        std=(0.3495,),
        samples=50,
        test_samples=40,
    ),
    "fashion-mnist": _mnist_like(
        wanted=tuple(_FASHION_MD5),
        downloads=tuple(Download(f"{_FASHION}/{name}", md5) for name, md5 in _FASHION_MD5.items()),
        decode=_idx_set("train", "t10k"),
        images=(60_000, 10_000),
        classes=10,
        test_samples=600,
    ),
    "cifar10": Recipe(
        wanted=(*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
        downloads=(
            Download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        ),
        decode=_cifar10,
        images=(50_000, 10_000),
        shape=(3, 32, 32),
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        augment=True,
    ),
    "emnist": _mnist_like(
        wanted=tuple(
            f"emnist-byclass-{p}-{k}-ubyte.gz" for p in ("train", "test") for k in ("images-idx3", "labels-idx1")
        ),
        downloads=(
            Download("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"),
        ),
        decode=_idx_set("emnist-byclass-train", "emnist-byclass-test", transposed=True),
        images=(697_932, 116_323),
        classes=62,
        samples=1000,
        test_samples=600,
        dominant=(tuple(range(10)), tuple(range(10, 36)), tuple(range(36, 62))),  # digits, upper case, lower case
    ),
    "cinic10": Recipe(
        wanted=("train", "test"),
        downloads=(
            Download(
                "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                "6ee4d0c996905fe93221de577967a372",
            ),
        ),
        decode=_cinic10,
        images=(90_000, 90_000),
        shape=(3, 32, 32),
        classes=10,
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
        augment=True,
    ),
}
