"""A study's table that is filled row by row: started again, it goes on with the rows that are missing."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from fedpac.provenance import provenance

Cell = TypeVar("Cell", bound=Sequence[object])


def fill(
    path: Path,
    columns: Sequence[str],
    cells: Iterable[Cell],
    measure: Callable[[Cell], Sequence[object]],
    most: int,
    seeds: str = "seed 0",
) -> int:
    """Measure at most so many cells whose row is missing. A row begins with its cell; gives back how many were done."""
    if not path.exists():
        about = provenance()
        path.write_text(
            f"# {about['command']}; {seeds}; commit {about['commit']}; torch {about['versions']['torch']}\n"
            f"{','.join(columns)}\n"
        )
    done = path.read_text().splitlines()
    missing = [cell for cell in cells if not any(line.startswith(_text(cell) + ",") for line in done)]
    for cell in missing[:most]:
        row = _text((*cell, *measure(cell)))
        with path.open("a") as file:
            file.write(row + "\n")
        print(row, flush=True)
    return len(missing[:most])


def _text(values: Iterable[object]) -> str:
    return ",".join(f"{value:.3f}" if isinstance(value, float) else str(value) for value in values)
