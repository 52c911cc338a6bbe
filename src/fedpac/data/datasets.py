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

import hashlib
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from fedpac.data import formats
from fedpac.data.clients import Pool
from fedpac.data.download import Download, fetch
from fedpac.data.formats import Arrays, Bytes, Files
from fedpac.errors import DataError, unknown

CACHE_VERSION = 1


@dataclass(frozen=True, eq=False)
class Dataset:
    name: str
    train: Pool
    test: Pool
    classes: int
    note: str  # why numbers on these files may not be set beside published ones; empty if they may
    source: tuple[Tensor, Tensor] | None = None  # CINIC-10, (train, test): 0 from CIFAR-10, 1 from ImageNet


@dataclass(frozen=True, eq=False, kw_only=True)
class Usual:
    """What a scenario takes from its data set where the config does not say."""

    classes: int
    samples: int = 600  # per client
    test_samples: int = 300
    augment: bool = False
    dominant: tuple[tuple[int, ...], ...] | None = None  # where the classes have groups of their own


@dataclass(frozen=True, eq=False, kw_only=True)
class Recipe(Usual):
    """How to get and read one published data set; what is usual with it is what the paper does."""

    wanted: tuple[str, ...]  # files or folders that hold the data
    downloads: tuple[Download, ...]  # either the wanted files themselves or an archive of them
    decode: Callable[[Files], Arrays]
    images: tuple[int, int]  # as published: train, test
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


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
        decode=lambda files: formats.digits(),
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
        decode=formats.idx_set("train", "t10k"),
        images=(60_000, 10_000),
        classes=10,
        test_samples=600,
    ),
    "cifar10": Recipe(
        wanted=(*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
        downloads=(
            Download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        ),
        decode=formats.cifar10,
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
        decode=formats.idx_set("emnist-byclass-train", "emnist-byclass-test", transposed=True),
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
        decode=formats.cinic10,
        images=(90_000, 90_000),
        shape=(3, 32, 32),
        classes=10,
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
        augment=True,
    ),
}
