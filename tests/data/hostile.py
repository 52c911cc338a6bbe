"""Files that were made to do harm, and what reads them."""

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from formats import idx, labels, png

from fedpac.data import from_folder, from_owners
from fedpac.data.datasets import load

GB = 1 << 30
X, Y = np.zeros((6, 4)), np.arange(6) % 2


def zeros(size: int, wbits: int) -> bytes:
    """So many zeros, deflated: the same few bytes over and over, so that making them takes no time."""
    squeeze = zlib.compressobj(9, wbits=wbits)
    block = 1 << 20
    head = squeeze.compress(bytes(block)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    middle = squeeze.compress(bytes(block)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    return head + middle * (size // block - 1) + squeeze.flush()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npy_header(descr: str, shape: str) -> bytes:
    """A header that claims what it likes, with nothing behind it."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return buffer.getvalue()


def npz(**members: bytes | np.ndarray) -> bytes:
    return archive({f"{k}.npy": npy(v) if isinstance(v, np.ndarray) else v for k, v in members.items()})


def overwritten(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + b"\xff" * (end - start) + data[end:]


def marked(data: bytes, local: int, central: int, value: int) -> bytes:
    """The zip archive with a 16-bit field of its first member set in both of its headers."""
    changed = bytearray(data)
    for at in (data.index(b"PK\x03\x04") + local, data.index(b"PK\x01\x02") + central):
        changed[at : at + 2] = struct.pack("<H", value)
    return bytes(changed)


def zip_bomb(size: int) -> bytes:
    """An .npz whose x unfolds to `size` zeros."""
    squeezed = zeros(size, -15)
    data = bytearray(archive({"x.npy": squeezed, "y.npy": npy(Y)}, zipfile.ZIP_STORED))
    for start, method, lengths in ((data.index(b"PK\x03\x04"), 8, 18), (data.index(b"PK\x01\x02"), 10, 20)):
        data[start + method : start + method + 2] = struct.pack("<H", zipfile.ZIP_DEFLATED)
        data[start + lengths : start + lengths + 8] = struct.pack("<II", len(squeezed), size)
    return bytes(data)


def gzip_bomb(head: bytes, size: int) -> bytes:
    return gzip.compress(head) + zeros(size, 31)  # members of a gzip file are read one after the other


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for member, data in members:
            member.size = member.size or len(data)
            file.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def link(name: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def tar_bomb(name: str, kind: bytes, size: int) -> bytes:
    """An archive whose only member is `size` zeros."""
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return gzip_bomb(member.tobuf(), size)


def tall_png(width: int, height: int) -> bytes:
    """A few bytes that claim to be a large picture."""
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", zlib.compress(b"")))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


# ---------------------------------------------------------------- reading


def read_client(folder: Path, data: bytes) -> None:
    (folder / "a.npz").write_bytes(data)
    from_folder(folder)


def read_owners(folder: Path, data: bytes) -> None:
    (folder / "a.npz").write_bytes(data)
    from_owners(folder / "a.npz")


def read_picture(folder: Path, data: bytes) -> None:
    for name, content in (("0.png", png(np.zeros((6, 4), np.uint8))), ("1.png", data)):
        file = folder / "client" / "cat" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    from_folder(folder)


def read_published(name: str, file: str) -> Callable[[Path, bytes], None]:
    """Puts the bytes where a published data set has this file, good ones where it has others, and loads it."""

    def read(folder: Path, data: bytes) -> None:
        for other, content in GOOD.get(name, {}).items():
            (folder / name).mkdir(exist_ok=True)
            (folder / name / other).write_bytes(content)
        (folder / name).mkdir(exist_ok=True)
        (folder / name / file).write_bytes(data)
        load(name, folder)

    return read


GOOD = {
    "fashion-mnist": {
        f"{part}-{kind}-ubyte.gz": idx(content)
        for part in ("train", "t10k")
        for kind, content in (("images-idx3", np.zeros((20, 28, 28), np.uint8)), ("labels-idx1", labels(20, 10)))
    }
}

read_fashion = read_published("fashion-mnist", "train-images-idx3-ubyte.gz")
read_cifar = read_published("cifar10", "cifar-10-binary.tar.gz")
read_cinic = read_published("cinic10", "CINIC-10.tar.gz")
read_emnist = read_published("emnist", "gzip.zip")

# name: what reads it, how it is made, and words of the complaint
HOSTILE: dict[str, tuple[Callable[[Path, bytes], None], Callable[[], bytes], str]] = {
    "npz, damaged where it is compressed": (
        read_client, lambda: overwritten(npz(x=np.arange(99.0)[:, None], y=labels(99, 3)), 60, 90), "not a readable",
    ),
    "npz, one wrong bit": (
        read_client, lambda: archive({"x.npy": npy(X), "y.npy": npy(Y)}, zipfile.ZIP_STORED).replace(
            X.tobytes(), b"\x01" + X.tobytes()[1:]
        ), "not a readable",
    ),
    "npz, encrypted": (read_client, lambda: marked(npz(x=X, y=Y), 6, 8, 1), "x.npy is encrypted"),
    "npz, unknown method": (read_client, lambda: marked(npz(x=X, y=Y), 8, 10, 99), "compressed by method 99"),
    "npz, a dictionary of 4 GB": (
        read_client, lambda: archive({"x.npy": npy(X), "y.npy": npy(Y)}, zipfile.ZIP_LZMA), "compressed by method 14",
    ),
    "npz, claims 10^12 items": (
        read_client, lambda: npz(x=npy_header("'<f8'", "(1000000000000,)"), y=Y), "x claims 8,000,000,000,000 bytes",
    ),
    "npz, claims 10^30 items": (
        read_client, lambda: npz(x=npy_header("'<f8'", f"({10**15}, {10**15})"), y=Y), "but holds 0",
    ),
    "npz, nested header": (
        read_client, lambda: npz(x=npy_header("'<f8'", "(" * 4000 + ")" * 4000), y=Y), "not a readable",
    ),
    "npz, items of no size": (read_client, lambda: npz(x=npy_header("'V0'", "(6, 4)"), y=Y), "expected numbers"),
    "npz, void split": (read_client, lambda: npz(x=X, y=Y, split=np.zeros(6, "V8")), "split must say"),
    "npz, objects": (
        read_client, lambda: npz(x=npy_header("'|O'", "(6, 4)") + b"cos\nsystem\n(S'true'\ntR.", y=Y), "Python objects",
    ),
    "npz, owners that are no names": (
        read_owners, lambda: npz(x=X, y=Y, owner=np.zeros(6, [("a", "<i4"), ("b", "V3")])), "a number or a name",
    ),
    "npz, names beyond Unicode": (
        read_owners, lambda: npz(x=X, y=Y, owner=np.full(6, 0xFFFFFFFF, "<u4").view("<U1")), "not a readable",
    ),
    "npz, 2 GB of zeros": (read_client, lambda: zip_bomb(2 * GB), "would expand to 2,147,48"),
    "gzip, 2 GB of zeros": (read_fashion, lambda: gzip_bomb(b"\0\0\x08\x03", 2 * GB), "the files expand to more than"),
    "idx, claims 2^96 pixels": (
        read_fashion, lambda: gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12), "expected 7922816",
    ),
    "idx, no images of a large size": (
        read_fashion, lambda: gzip.compress(b"\0\0\x08\x03" + b"\0" * 4 + b"\xff" * 8), "train-images-idx3-ubyte.gz",
    ),
    "tar, a link to nowhere": (
        read_cifar, lambda: tar(link("data_batch_1.bin", "nowhere", tarfile.LNKTYPE)), "lacks some of data_batch_1.bin",
    ),
    "tar, a link to itself": (
        read_cifar, lambda: tar(link("data_batch_1.bin", "data_batch_1.bin", tarfile.SYMTYPE)), "lacks some of",
    ),
    "tar, 2 GB that nobody wants": (
        read_cifar, lambda: tar_bomb("README", tarfile.REGTYPE, 2 * GB), "expands to more than",
    ),
    "tar, a name of 1 GB": (read_cifar, lambda: tar_bomb("x", tarfile.GNUTYPE_LONGNAME, GB), "a header of 1,073,74"),
    "tar, a batch of 1 GB": (read_cifar, lambda: tar_bomb("test_batch.bin", tarfile.REGTYPE, GB), "expand to more"),
    "tar, a picture that is none": (
        read_cinic, lambda: tar((tarfile.TarInfo("train/dog/a.png"), b"\x89PNG\r\n\x1a\n")), "train/dog/a.png is not a",
    ),
    "zip, encrypted": (
        read_emnist, lambda: marked(archive({"gzip/emnist-byclass-train-images-idx3-ubyte.gz": b""}), 6, 8, 1),
        "is encrypted",
    ),
    "zip, 2 GB of zeros": (
        read_emnist,
        lambda: archive({"emnist-byclass-train-images-idx3-ubyte.gz": gzip_bomb(b"\0\0\x08\x03", 2 * GB)}),
        "the files expand to more than",
    ),
    "png, 4 gigapixels in 69 bytes": (read_picture, lambda: tall_png(65535, 65535), "1.png"),
    "png, 100 megapixels": (read_picture, lambda: tall_png(10_000, 10_000), "at most 16,777,216 are read"),
    "png, cut in its first chunk": (read_picture, lambda: tall_png(6, 4)[:20], "not a readable PNG or JPEG"),
    "png, another format": (read_picture, lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a"),
}  # fmt: skip
