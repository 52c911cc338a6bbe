"""Files that are either whole or not there, and what the operating system says of them in words that help."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedpac.errors import RunError


@contextmanager
def explained(path: Path, then: str = "try again") -> Iterator[None]:
    """Turns what the operating system says of a folder into what the user can do about it.

    then: what to do when there is room on the disk again.
    """
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: f"the disk is full: free some space, then {then}",
            errno.EDQUOT: f"your disk quota is used up: free some space, then {then}",
            errno.EROFS: "the file system is read-only: choose another folder",
            errno.EACCES: "permission denied: choose another folder or change its permissions",
            errno.ENOTDIR: "part of that path is a file, not a folder",
            errno.EEXIST: "that is a file, not a folder",
        }.get(error.errno or 0, error.strerror or str(error))
        raise RunError(f"{path}: {advice}") from None


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    """The file holds either all of the old or all of the new bytes, whenever the power goes.

    `mode` is for a new file, less what the user's umask takes away.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):  # what went wrong first is what the user is told
            temporary.unlink(missing_ok=True)
        raise


def write_changed(path: Path, data: bytes) -> bool:
    """As above, unless the file has these bytes already; whether it was written."""
    with suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return False
    write_atomically(path, data)
    return True


def _sync_folder(folder: Path) -> None:
    """Without it, the new name may be lost with the power although the bytes are on the disk."""
    with suppress(OSError):  # not every file system lets a folder be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
