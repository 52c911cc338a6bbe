"""Where a run's time went: what `fedpac run --profile` shows and writes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from fedpac.files import explained, write_atomically
from fedpac.rounds import RoundReport
from fedpac.runs.folder import csv_lines
from fedpac.timing import Span, measuring

SMALL = 0.005  # of the whole; such spans are not listed but are part of the rest


class Profile:
    """Measures while it is entered, round by round.

    server     the time of the rounds, as the clock on the wall shows it
    exchange   in the threads that serve a worker process each, summed over them
    clients    in the processes that clients are visited in, summed over them
    """

    def __init__(self) -> None:
        self.rounds: dict[int, dict[Span, float]] = {}

    def __enter__(self) -> Self:
        self.measuring = measuring()
        self.clock = self.measuring.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.measuring.__exit__(*error)

    def see(self, report: RoundReport) -> None:
        """To be called after every round."""
        self.rounds[report.round] = self.clock.take()

    def write(self, folder: Path) -> Path:
        """One line for each span of each round: its own seconds, without those of the spans inside it."""
        rows = [
            (round, "/".join(span), f"{seconds:.6f}")
            for round, spent in self.rounds.items()
            for span, seconds in sorted(spent.items())
        ]
        path = folder / "profile.csv"
        with explained(path):
            write_atomically(path, csv_lines([("round", "span", "seconds"), *rows]).encode())
        return path

    def rows(self) -> list[dict[str, str]]:
        """A line for each span of the run, the longest first, what is inside it below; for a table."""
        own: dict[Span, float] = {}
        for spent in self.rounds.values():
            for span, seconds in spent.items():
                own[span] = own.get(span, 0.0) + seconds
        roots = [(name,) for name in ("server", "exchange", "clients") if any(span[0] == name for span in own)]
        return [
            {
                "what": "  " * (len(span) - 1) + span[-1],
                "seconds": f"{seconds:.2f}",
                "each": f"{seconds / len(self.rounds):.3f}",
                "share": f"{100 * seconds / _inside(own, root):.1f}",
            }
            for root in roots
            for span, seconds in _tree(own, root)
        ]


def _inside(own: dict[Span, float], span: Span) -> float:
    """The seconds of a span with all that it holds."""
    return sum(seconds for other, seconds in own.items() if other[: len(span)] == span)


def _tree(own: dict[Span, float], span: Span) -> Iterator[tuple[Span, float]]:
    """A span, what is worth listing inside it, and the rest."""
    whole, worth = _inside(own, span), SMALL * _inside(own, span[:1])
    inner = {other[: len(span) + 1] for other in own if other[: len(span)] == span and other != span}
    listed = {part: seconds for part in inner if (seconds := _inside(own, part)) >= worth}
    yield span, whole
    for part in sorted(listed, key=listed.__getitem__, reverse=True):
        yield from _tree(own, part)
    rest = whole - sum(listed.values())
    if listed and rest >= worth:
        yield (*span, "the rest"), rest
