"""Files from anywhere, read within bounds: one that is damaged, hostile or too large is a DataError that names it."""

import gzip
import math
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedpac.errors import DataError, FedpacError

ROOM = 128 << 20  # bytes that every file may expand to,
RATIO = 100  # and the multiple of its own size that it may expand to beyond that
MOST_PIXELS = 1 << 24  # of one image; 4096 x 4096
AGAIN = "Replace it, or delete it to download it again."


@contextmanager
def readable(name: object, kind: str = "file", advice: str = "") -> Iterator[None]:
    """Whatever a decoder stumbles over becomes an error that names the file.

    zipfile, tarfile, NumPy and Pillow do not say what they raise on damaged files; fuzzing met a dozen kinds.
    """
    try:
        yield
    except FedpacError:
        raise
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        reason = f"it may be damaged or cut short ({said})"
        raise DataError(f"{name} is not a readable {kind}; {reason}. {advice}".rstrip()) from error


def room(packed: int) -> int:
    """What so many bytes may expand to: a few must not fill the memory."""
    return max(ROOM, RATIO * packed)


def check_expansion(name: object, packed: int, unpacked: int) -> None:
    if unpacked > room(packed):
        raise DataError(
            f"{name}: {packed:,} bytes would expand to {unpacked:,}, more than {RATIO} times as many. "
            "If that is intended, store the data uncompressed (numpy.savez)."
        )


def _regular(path: Path) -> Path:
    """The same path, if it is a file: a pipe or a device may never come to an end."""
    if not path.is_file():
        raise DataError(f"{path} is not a file.")
    return path


# ---------------------------------------------------------------- the formats of users' own data


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the file by name. Nothing in it is executed, and what it claims is checked first."""
    with readable(path, ".npz file of plain arrays"), _open_zip(_regular(path)) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist() if _is_array(info)}
        check_expansion(path, path.stat().st_size, sum(info.file_size for info in members.values()))
        return {name: _read_array(archive, info, name) for name, info in members.items()}


def _open_zip(path: Path) -> zipfile.ZipFile:
    archive = zipfile.ZipFile(path)
    for info in archive.infolist():
        if info.flag_bits & 1:
            raise DataError(f"{path}: {info.filename} is encrypted; expected a plain file.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(f"{path}: {info.filename} is compressed by method {info.compress_type}; expected deflate.")
    return archive


def _is_array(info: zipfile.ZipInfo) -> bool:
    return info.filename.endswith(".npy")


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    with archive.open(info) as file:
        version = npy.read_magic(file)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = header(file)
        claimed, held = math.prod(shape) * dtype.itemsize, info.file_size - file.tell()
    if dtype.hasobject:
        raise DataError(f"{archive.filename}: {name} holds Python objects; expected a plain array.")
    if claimed != held:
        raise DataError(f"{archive.filename}: {name} claims {claimed:,} bytes of {dtype} but holds {held:,}.")
    with archive.open(info) as file:
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
        file.read(1)  # only at its end a file's checksum is compared
    if dtype.kind == "U":
        "".join(array.ravel().tolist()).encode()  # NumPy takes any number for a character; an error if one is none
    return array


def read_image(
    source: Path | BytesIO, mode: str | None = None, size: tuple[int, int] | None = None, name: str = ""
) -> NDArray[np.uint8]:
    """A PNG or JPEG as (height, width) or (height, width, 3).

    mode   'L' for grey, 'RGB' for colours; as it is where none is given
    size   (width, height) that it must have
    name   for messages, where the source is no path
    """
    from PIL import Image

    name = name or str(source)
    file = _regular(source) if isinstance(source, Path) else source
    with readable(name, "PNG or JPEG image"), Image.open(file, formats=("PNG", "JPEG")) as image:
        width, height = image.size
        if size is not None and image.size != size:
            raise DataError(f"{name} is {width} x {height} pixels, expected {size[0]} x {size[1]}.")
        if width * height > MOST_PIXELS:
            raise DataError(f"{name} is {width} x {height} pixels; at most {MOST_PIXELS:,} are read.")
        return image_bytes(image, mode)


def image_bytes(image: Any, mode: str | None = None) -> NDArray[np.uint8]:
    """A Pillow image as (height, width) or (height, width, 3). Of 16 bits a pixel, the upper eight are kept."""
    from PIL import Image

    if image.mode.startswith("I"):  # which Pillow would cut off at 255
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    return np.array(image.convert(mode or ("L" if image.mode in ("1", "L", "LA") else "RGB")))


# ---------------------------------------------------------------- the files of a published data set


class Budget:
    """What the files of a data set may come to once they are unpacked, all together."""

    def __init__(self, most: int) -> None:
        self.most = self.left = most

    def spend(self, size: int, name: str) -> None:
        self.left -= size
        if self.left < 0:
            raise DataError(f"{name}: the files expand to more than {self.most:,} bytes, more than this data set has.")


@dataclass(frozen=True)
class File:
    """One file, loose or in an archive; to be read before the next one is asked for."""

    name: str  # begins with the folder or the archive that it is in
    stream: BufferedReader
    budget: Budget

    def data(self) -> bytearray:
        """All that it holds, unpacked where it is gzipped."""
        data = self._unpacked()
        self.budget.spend(len(data), self.name)
        return data

    def pixels(self, size: tuple[int, int]) -> NDArray[np.uint8]:
        """The pixels of a PNG of this (width, height), (height, width, 3)."""
        pixels = read_image(BytesIO(self._unpacked()), "RGB", size, self.name)
        self.budget.spend(pixels.nbytes, self.name)
        return pixels

    def _unpacked(self) -> bytearray:
        data = bytearray()  # grows in place, where the chunks of a list would be joined into a second copy
        with readable(self.name, advice=AGAIN):
            gzipped = self.stream.peek(2)[:2] == b"\x1f\x8b"
            stream = gzip.GzipFile(fileobj=self.stream) if gzipped else self.stream
            while len(data) <= self.budget.left and (chunk := stream.read(1 << 20)):
                data += chunk
        return data


def contents(sources: Sequence[Path], most: int) -> Iterator[File]:
    """Every file in files, folders and archives, as long as no more than `most` bytes of them are read."""
    if all(path.is_file() for path in sources):
        most = min(most, room(sum(path.stat().st_size for path in sources)))
    budget = Budget(most)
    for path in sources:
        with readable(path, advice=AGAIN):
            if path.is_dir():
                for file in sorted(path.rglob("*.png")):
                    yield from _loose(file, budget)
            elif path.suffix == ".zip":
                with _open_zip(path) as archive:
                    for info in archive.infolist():
                        with archive.open(info) as member:
                            yield File(f"{path}/{info.filename}", cast(BufferedReader, member), budget)
            elif path.name.endswith(".tar.gz"):
                yield from _members(path, budget)
            else:
                yield from _loose(path, budget)


def _loose(path: Path, budget: Budget) -> Iterator[File]:
    with _regular(path).open("rb") as stream:
        yield File(str(path), stream, budget)


def _members(path: Path, budget: Budget) -> Iterator[File]:
    """Links are left out: no publisher has any, and they may lead nowhere or to themselves."""
    with gzip.open(path) as packed:
        stream = _Metered(packed, 2 * budget.most)  # headers and files that nobody reads are gone through, too
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as tar:  # type: ignore[call-overload]
            while member := tar.next():
                tar.members.clear()  # it would keep every one of them
                if member.isreg() and not member.issparse() and (opened := tar.extractfile(member)):
                    yield File(f"{path}/{member.name}", cast(BufferedReader, opened), budget)


class _Member(tarfile.TarInfo):
    """A member whose name and attributes, which tarfile takes into memory, are of a size that names have."""

    HEADERS = (
        tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
    )  # fmt: skip

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        member = super().frombuf(buf, encoding, errors)
        if member.type in cls.HEADERS and member.size > 1 << 20:
            raise tarfile.ReadError(f"it has a header of {member.size:,} bytes")
        return member


class _Metered:
    """A stream that ends in an error after so many bytes."""

    def __init__(self, stream: gzip.GzipFile, most: int) -> None:
        self.stream, self.most, self.left = stream, most, most

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise tarfile.ReadError(f"it expands to more than {self.most:,} bytes")
        return data
