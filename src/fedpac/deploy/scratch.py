"""A folder for the keys and logs of a trial, which goes when the trial does: at the latest when the next one starts."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedpac.files import explained

PREFIX = "fedpac-trial-"
LOCK = "lock"  # held as long as its process lives, however that ends


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """One that only its owner can read. What trials that were killed have left is removed first."""
    parent = parent or Path(tempfile.gettempdir())
    sweep(parent)
    with explained(parent):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))  # mode 0700
    try:
        with (folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove this user's folders whose process has ended."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another process may be at it, or has just begun
            mine = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            if mine and (folder / LOCK).exists():
                with (folder / LOCK).open("r") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
