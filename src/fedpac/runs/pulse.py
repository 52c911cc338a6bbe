"""What a run is doing now, in a small file beside its tables, for whoever watches it from another process.

The run writes and never reads it; whoever watches reads and never writes. Whatever goes wrong with the file is no
matter to the run.
"""

import json
import os
import platform
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedpac.engines.site import Job, Outcome

PULSE = ".pulse.json"
PAUSE = 0.3  # seconds between two writes at least
MOST = 2_000  # clients that are listed; of more, only how many answered


@dataclass
class Beat:
    """One moment of a run."""

    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=platform.node)
    round: int = 0
    since: float = field(default_factory=time.time)  # when those who are asked were asked
    present: list[int] | None = None  # the clients that are there; None if nobody has looked yet
    asked: int = 0
    answered: int = 0
    waiting: list[int] = field(default_factory=list)  # asked and not yet heard of
    failed: dict[int, str] = field(default_factory=dict)  # in this round
    seconds: list[float] = field(default_factory=list)  # of those who answered; in the file, the median


class Pulse:
    """An engine's listener that keeps the file up to date, at most PAUSE seconds behind."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / PULSE
        self.beat = Beat()
        self.written = 0.0
        self.lock = threading.RLock()  # a timer writes what nothing else comes after
        self.timer: threading.Timer | None = None
        self.ended = False

    def present(self, clients: Sequence[int]) -> None:
        found = list(clients) if len(clients) <= MOST else None
        with self.lock:
            changed, self.beat.present = found != self.beat.present, found
            if changed:
                self._write()

    def asked(self, jobs: Sequence[Job]) -> None:
        beat, round = self.beat, jobs[0].round if jobs else self.beat.round
        with self.lock:
            if round != beat.round:
                beat.round, beat.failed = round, {}
            beat.since, beat.asked, beat.answered, beat.seconds = time.time(), len(jobs), 0, []
            beat.waiting = [job.client for job in jobs] if len(jobs) <= MOST else []
            self._soon()

    def heard(self, outcome: Outcome) -> None:
        beat = self.beat
        with self.lock:
            beat.answered += 1
            with suppress(ValueError):
                beat.waiting.remove(outcome.client)
            if outcome.error is None:
                beat.seconds.append(time.time() - beat.since)
            elif len(beat.failed) < MOST:
                beat.failed[outcome.client] = outcome.error.reason
            self._soon()

    def end(self) -> None:
        with self.lock:
            self.ended = True
            if self.timer is not None:
                self.timer.cancel()
            with suppress(OSError):
                self.path.unlink(missing_ok=True)

    def _soon(self) -> None:
        wait = self.written + PAUSE - time.monotonic()
        if wait <= 0:
            self._write()
        elif self.timer is None:
            self.timer = threading.Timer(wait, self._later)
            self.timer.daemon = True
            with suppress(RuntimeError):  # no more threads: the next event will do
                self.timer.start()

    def _later(self) -> None:
        with self.lock:
            self.timer = None
            if not self.ended:
                self._write()

    def _write(self) -> None:
        self.written = time.monotonic()
        usual = [statistics.median_low(self.beat.seconds)] if self.beat.seconds else []
        told = asdict(self.beat) | {"seconds": usual}
        temporary = self.path.with_name(f"{PULSE}.{os.getpid()}.tmp")
        with suppress(OSError):  # a full disk is the run's business, and it says so itself
            temporary.write_text(json.dumps(told))
            temporary.replace(self.path)


@contextmanager
def beating(folder: Path) -> Iterator[Pulse]:
    """The file is there while this lasts, unless the process is killed."""
    pulse = Pulse(folder)
    try:
        yield pulse
    finally:
        pulse.end()


def read_beat(folder: Path) -> Beat | None:
    """The last moment that is known of; None where there is none, or the file is not one of ours."""
    try:
        values: Any = json.loads((folder / PULSE).read_text())
        beat = Beat(**values)
        beat.failed = {int(client): str(reason) for client, reason in beat.failed.items()}
        beat.waiting = [int(client) for client in beat.waiting]
        beat.present = None if beat.present is None else [int(client) for client in beat.present]
        beat.since, beat.round, beat.pid = float(beat.since), int(beat.round), int(beat.pid)
        beat.seconds = [float(each) for each in beat.seconds]
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return beat


def alive(beat: Beat) -> bool:
    """Whether the process is there that wrote it; on another machine nobody can tell, and it is believed."""
    if beat.host != platform.node() or beat.pid <= 0:
        return True
    try:
        os.kill(beat.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
