"""The published data sets, read from their publishers' own files.

A set is looked for under `<data_dir>/<name>/`; what is not there is downloaded. It is decoded once into uint8 arrays
beside its files, which are then memory-mapped: a second start takes milliseconds, and processes share the pages.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from fedpac.data.clients import Pool
from fedpac.data.download import Download, fetch
from fedpac.data.formats import Arrays, Bytes
from fedpac.data.published import Published, published
from fedpac.data.untrusted import AGAIN, contents, readable
from fedpac.errors import DataError
from fedpac.files import write_atomically

CACHE_VERSION = 1


@dataclass(frozen=True, eq=False)
class Dataset:
    name: str
    train: Pool
    test: Pool
    classes: int
    note: str  # why numbers on these files may not be set beside published ones; empty if they may
    source: tuple[Tensor, Tensor] | None = None  # CINIC-10, (train, test): 0 from CIFAR-10, 1 from ImageNet
    class_names: tuple[str, ...] = ()  # where classes have names


def data_root(data_dir: Path | str | None = None) -> Path:
    """The argument, else the environment's FEDPAC_DATA, else the user's cache folder."""
    if chosen := data_dir or os.environ.get("FEDPAC_DATA"):
        return Path(chosen).expanduser()
    return _user_cache()


def load(name: str, data_dir: Path | str | None = None) -> Dataset:
    """A data set by name; downloaded and decoded if need be."""
    entry = published(name)
    arrays, altered = _cached(entry, data_root(data_dir) / name) if entry.wanted else (entry.decode(()), "")
    pools = {
        part: Pool(_tensor(arrays[f"x_{part}"]), _tensor(arrays[f"y_{part}"]).long(), entry.mean, entry.std)
        for part in ("train", "test")
    }
    got, images = (len(pools["train"].y), len(pools["test"].y)), entry.images
    note = ""
    if got != images:
        note = f"stand-in: {got[0]} + {got[1]} images, published are {images[0]} + {images[1]}"
    elif altered:
        note = f"stand-in: {altered} is not the published file"
    source = (_tensor(arrays["source_train"]), _tensor(arrays["source_test"])) if "source_train" in arrays else None
    return Dataset(name, pools["train"], pools["test"], entry.classes, note, source, entry.class_names)


def present(name: str, data_dir: Path | str | None = None) -> bool:
    """Whether load() finds all files where it looks for them, so that it downloads nothing."""
    entry, folder = published(name), data_root(data_dir) / name
    loose = _loose(entry.wanted, folder)
    return len(loose) == len(entry.wanted) or all((folder / d.name).exists() for d in entry.downloads)


# ---------------------------------------------------------------- files: find, download, read


def _sources(entry: Published, folder: Path) -> list[Path]:
    """The files to read, after downloading what is missing."""
    loose = _loose(entry.wanted, folder)
    if loose and (lost := set(entry.wanted) - set(loose) - {d.name for d in entry.downloads}):
        where = next(iter(loose.values())).parent
        raise DataError(
            f"{where / min(lost)} is missing, but the other files exist. Add it, or remove them all to download again."
        )
    if len(loose) == len(entry.wanted):
        return [loose[name] for name in entry.wanted]
    found = [loose.get(d.name, folder / d.name) for d in entry.downloads]
    return [path if path.exists() else fetch(d, folder) for path, d in zip(found, entry.downloads, strict=True)]


def _loose(wanted: tuple[str, ...], folder: Path) -> dict[str, Path]:
    """Those of the wanted names that lie in the folder or one below, unpacked or not."""
    places = [folder, *sorted(p for p in folder.glob("*") if p.is_dir() and p.name not in wanted)]
    spellings = {name: (name, name.removesuffix(".gz")) for name in wanted}
    found = {n: place / s for place in places for n, both in spellings.items() for s in both if (place / s).exists()}
    return {n: found[n] for n in wanted if n in found}


def _user_cache() -> Path:
    import pooch

    return Path(pooch.os_cache("fedpac"))


# ---------------------------------------------------------------- the cache of decoded arrays


def _cached(entry: Published, folder: Path) -> tuple[Arrays, str]:
    """Memory-mapped arrays, decoded first if there are none yet or the files have changed since; and `_altered`."""
    sources = _sources(entry, folder)
    homes = _writable(folder / "decoded") or _user_cache() / folder.name / "decoded"
    home = homes / f"v{CACHE_VERSION}-{_fingerprint(sources)}"
    try:
        arrays = _open(home, entry)
    except Exception:  # there are none, or damaged ones (NumPy has no list of what it raises then)
        with _alone(folder):  # else one would remove as damaged what another is writing
            arrays = _decoded(entry, sources, folder, home)
    return arrays, _altered(entry, sources, home / "altered.txt")


def _decoded(entry: Published, sources: list[Path], folder: Path, home: Path) -> Arrays:
    with suppress(Exception):  # another process has done it by now
        return _open(home, entry)
    shutil.rmtree(home, ignore_errors=True)
    arrays = entry.decode(contents(sources, entry.most_bytes))
    _check(arrays, entry, folder)
    try:
        _save(arrays, home)
    except OSError as error:
        size = sum(array.nbytes for array in arrays.values()) // 1_000_000
        raise DataError(f"{home.parent}: {size} MB of decoded images could not be written ({error}).") from error
    return _open(home, entry)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process or thread at a time. On a disk without locks all may write, and the first one's arrays stay."""
    held = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _altered(entry: Published, sources: list[Path], memory: Path) -> str:
    """The first file that is not the publisher's. Found out once: `memory` is for files of this size and date."""
    with suppress(OSError, ValueError):
        return memory.read_text()
    sums = {spelling: d for d in entry.downloads for spelling in (d.name, d.name.removesuffix(".gz"))}
    known = [(path, sums[path.name]) for path in sources if path.name in sums]
    altered = next((path.name for path, download in known if not _is_published(path, download, entry.most_bytes)), "")
    with suppress(OSError):  # in a folder that cannot be written to, it is found out every time
        write_atomically(memory, altered.encode())
    return altered


def _is_published(path: Path, download: Download, most: int) -> bool:
    """Whether this is the publisher's file; where the checksum of what it holds is known, however it is packed."""
    with readable(path, advice=AGAIN), path.open("rb") as file:
        if hashlib.file_digest(file, "md5").hexdigest() == download.md5:
            return True
    held = (hashlib.md5(file.data()).hexdigest() for file in contents([path], most))
    return bool(download.holds) and download.holds in held


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
        with readable(path, advice=AGAIN):
            for p in sorted(path.iterdir()) if path.is_dir() else [path]:
                known.append(f"{path.name}/{p.name}/{0 if p.is_dir() else p.stat().st_size}/{p.stat().st_mtime_ns}")
    return hashlib.blake2b("\n".join(known).encode(), digest_size=8).hexdigest()


def _writable(folder: Path) -> Path | None:
    return folder if os.access(folder if folder.exists() else folder.parent, os.W_OK) else None


def _open(folder: Path, entry: Published) -> Arrays:
    """Copy-on-write maps: torch takes them as they are, and nothing written to a tensor can reach the file."""
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    arrays: Arrays = {file.stem: np.load(file, mmap_mode="c") for file in folder.glob("*.npy")}
    if not {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        raise ValueError("incomplete")
    _check(arrays, entry, folder)
    return arrays


def _tensor(array: Bytes) -> Tensor:
    return torch.from_numpy(array)


def _check(arrays: Arrays, entry: Published, folder: Path) -> None:
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.dtype != np.uint8 or y.dtype != np.uint8 or y.ndim != 1:
            raise DataError(f"{folder}: {part} images and labels are not bytes.")
        if x.shape[1:] != entry.shape:
            raise DataError(
                f"{folder}: {part} images are {x.shape[1:]} (channels, height, width), expected {entry.shape}."
            )
        if len(x) != len(y):
            raise DataError(f"{folder}: {len(x)} {part} images but {len(y)} labels.")
        if not len(y):
            raise DataError(f"{folder}: there are no {part} images.")
        if y.max() >= entry.classes:
            at = int((y >= entry.classes).argmax())
            raise DataError(f"{folder}: {part} label {at} is {y[at]}, allowed are 0 to {entry.classes - 1}.")
