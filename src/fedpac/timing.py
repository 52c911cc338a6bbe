"""Where the time goes: named spans of the code, measured only while somebody wants to know.

    with span("features"):              with measuring() as clock:
        ...                                 ...
    @span("evaluation")                 clock.take()   # {("server", "merging"): 0.7, ("clients", "features"): 3.1, ...}
    def evaluate(...): ...

Spans nest, and their seconds are their own: what passes in an inner span is the inner one's. When nobody
measures, a span is two calls that do nothing, less than a microsecond.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from typing import TypeAlias

Span: TypeAlias = tuple[str, ...]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[Span] = []
        self.since = 0.0


class Clock:
    """Seconds by span. At any moment a thread's time is that of the innermost span it has open."""

    def __init__(self) -> None:
        self.seconds: dict[Span, float] = {}
        self.lock = threading.Lock()
        self.thread = _Thread()

    def start(self, name: str, root: bool) -> None:
        opened = self._charge()
        opened.append((name,) if root or not opened else (*opened[-1], name))

    def stop(self) -> None:
        self._charge().pop()

    def take(self) -> dict[Span, float]:
        """What was measured since it was taken last."""
        self._charge()
        with self.lock:
            taken, self.seconds = self.seconds, {}
        return taken

    def add(self, seconds: Mapping[Span, float]) -> None:
        """For what another process has measured."""
        with self.lock:
            for span, spent in seconds.items():
                self.seconds[span] = self.seconds.get(span, 0.0) + spent

    def _charge(self) -> list[Span]:
        """Count the time up to now; returns what this thread has open."""
        thread, now = self.thread, time.perf_counter()
        if thread.open:
            self.add({thread.open[-1]: now - thread.since})
        thread.since = now
        return thread.open


clock: Clock | None = None  # this process's, while it measures


class span(ContextDecorator):  # noqa: N801  (used like a function)
    """Names what is inside. A `root` is nobody's part: a client's visit is none of the server's work."""

    def __init__(self, name: str, root: bool = False) -> None:
        self.name = name
        self.root = root

    def __enter__(self) -> None:
        if clock is not None:
            clock.start(self.name, self.root)

    def __exit__(self, *error: object) -> None:
        if clock is not None:
            clock.stop()


@contextmanager
def measuring() -> Iterator[Clock]:
    global clock
    before, clock = clock, Clock()
    try:
        yield clock
    finally:
        clock = before
