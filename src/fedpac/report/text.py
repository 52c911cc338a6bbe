"""Rows as text: for the terminal, as Markdown and as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def rich_table(
    rows: Sequence[Mapping[str, str]], columns: Mapping[str, str], title: str | None = None, left: Sequence[str] = ()
) -> "Table":
    """For the terminal. Columns named in `left` are text, the others numbers."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold", show_edge=False)
    for key, header in columns.items():
        text = key in left
        lines = [line for cell in (header, *(row[key] for row in rows)) for line in cell.splitlines()]
        widest = max(map(len, lines), default=0)
        least = min(widest, 10) if text else widest  # texts can be wrapped, numbers cannot
        table.add_column(header, justify="left" if text else "right", no_wrap=not text, min_width=least)
    for row in rows:
        table.add_row(*(escape(row[key]) for key in columns))
    return table


def markdown(rows: Sequence[Mapping[str, str]], columns: Mapping[str, str]) -> str:
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(row[key].replace("|", "\\|") for key in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def csv_text(rows: Sequence[Mapping[str, str]], columns: Mapping[str, str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row[key] for key in columns] for row in rows)
    return text.getvalue()
