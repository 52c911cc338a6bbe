"""A worker's tie to the process that started it: it ends when that one does, however that one ends."""

import ctypes
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Parent:
    """Who starts a worker. The kernel ties a process to the thread that started it, and a program's threads may come
    and go; its main thread stays as long as the program does."""

    process: int
    main_thread: bool

    @classmethod
    def of_this_thread(cls) -> Self:
        return cls(os.getpid(), threading.current_thread() is threading.main_thread())


def end_with_parent(parent: Parent) -> None:
    """From now on this process ends with its parent, whatever it is doing."""
    if not (parent.main_thread and _kernel_ends_it()):
        threading.Thread(target=_watch, args=(parent.process,), daemon=True).start()
    if os.getppid() != parent.process:  # it has ended already
        os._exit(1)


def _kernel_ends_it() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0)
    except (OSError, AttributeError):
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def cpu_seconds(process: int) -> float | None:
    """The time a process has computed so far; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
