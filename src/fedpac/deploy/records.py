"""What a site knows of its own models: metrics.csv, and scores.csv where more is measured."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from fedpac.files import explained, write_atomically
from fedpac.metrics import SEPARATOR
from fedpac.runs.folder import SCORES, csv_lines

Cell: TypeAlias = tuple[int, str]  # (round, split)


class Records:
    """Tables that only their owner can read. A round that is repeated is there once.

    judged   what the score's first number is: 'accuracy', or 'r2' where numbers are predicted
    """

    def __init__(self, folder: Path, judged: str) -> None:
        self.folder = folder
        scores = tuple(name for name in SCORES if name != "client")
        self.tables = {"metrics.csv": ("round", "split", judged, "loss"), "scores.csv": scores}

    def note(self, round: int, split: str, score: tuple[float, float], measured: Mapping[str, float]) -> None:
        more = [(*name.split(SEPARATOR, 1), repr(value)) for name, value in measured.items()]
        for name, rows in (("metrics.csv", [tuple(map(repr, score))]), ("scores.csv", more)):
            if rows:
                self._write(name, self._read(name) | {(round, split): rows})

    def end(self, round: int) -> None:
        """Nothing counts that came after this round."""
        for name in self.tables:
            if known := self._read(name):
                self._write(name, {place: rows for place, rows in known.items() if place[0] <= round})

    def known_in(self, round: int) -> dict[str, tuple[float, float]]:
        """Split -> the score of the last evaluation up to this round."""
        rows = sorted(self._read("metrics.csv").items())
        return {split: (float(a), float(loss)) for (t, split), [(a, loss)] in rows if t <= round}

    def _write(self, name: str, known: Mapping[Cell, Sequence[tuple[str, ...]]]) -> None:
        lines = [(*place, *row) for place, rows in sorted(known.items()) for row in rows]
        with explained(self.folder):
            write_atomically(self.folder / name, csv_lines([self.tables[name], *lines]).encode(), mode=0o600)

    def _read(self, name: str) -> dict[Cell, list[tuple[str, ...]]]:
        path = self.folder / name
        with explained(path):
            text = path.read_text() if path.exists() else ""
        found: dict[Cell, list[tuple[str, ...]]] = {}
        for round, split, *rest in list(csv.reader(io.StringIO(text)))[1:]:
            found.setdefault((int(round), split), []).append(tuple(rest))
        return found
