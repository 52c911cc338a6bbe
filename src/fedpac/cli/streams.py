"""What is printed where a stream cannot show a character: plain ones that mean the same."""

import codecs
import io
import sys
import unicodedata
from typing import Any

from rich.console import Console
from rich.text import Text

PLAIN = {
    "±": "+-", "→": "->", "◂": "<", "×": "x", "·": "*", "≤": "<=", "≥": ">=", "–": "-", "…": "...", "⁻": "-",
    "░": ".", "▒": ":", "▓": "*", "█": "#",
}  # fmt: skip


class PlainConsole(Console):
    """Replaces characters before it lays out a table, so that columns are as wide as what they show."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(text.encode(self.encoding, "plain").decode(self.encoding), **options)


def printable_everywhere() -> None:
    """From here on, no character that is printed is an error, whatever the encoding of the terminal or the pipe."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(character: str) -> str:
    without_accent = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    kind, _, letter = unicodedata.name(character, "").rpartition(" LETTER ")
    greek = {"GREEK SMALL": letter.lower(), "GREEK CAPITAL": letter.capitalize()}.get(kind)
    return PLAIN.get(character) or without_accent or greek or "?"


codecs.register_error("plain", _replace)
