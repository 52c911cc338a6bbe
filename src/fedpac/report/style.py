"""How all figures look, and how they are written: readable in print, by the colour-blind and in grey."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, ParamSpec

import matplotlib

matplotlib.use("Agg")  # before pyplot: figures are files, no window is ever opened

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from fedpac.files import explained, write_atomically
from fedpac.methods import PAPER, list_methods
from fedpac.methods.base import Which

# Okabe and Ito's colours, the ones that are legible on white; markers tell lines apart without colour
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # one fewer, so that the pairs of both go on for 56 lines
FIRST = ("fedpac", "fedavg", "fedavg-ft", "local", "fedrep", "ditto", "fed-rod", "fedbabu")  # a colour each
LINES: dict[Which, Literal["-", "--"]] = {"received": "-", "personal": "--"}
HEAT = "viridis"
P = ParamSpec("P")

STYLE: Any = {
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.hashsalt": "fedpac",  # equal figures are equal bytes
}


def looks(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Colour and marker of each line, given its method: a method has its own wherever it is drawn.

    A method of the user's own, or one with several lines, takes what no other line has.
    """
    every = [(COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]) for k in range(len(COLOURS) * len(MARKERS))]
    own = dict(zip(dict.fromkeys([*FIRST, *sorted(PAPER), *list_methods()]), every, strict=False))
    free = cycle([look for look in every if look not in [own.get(name) for name in lines]])
    chosen: list[tuple[str, str]] = []
    for name in lines:
        look = own.get(name)
        chosen.append(look if look is not None and look not in chosen else next(free))
    return chosen


@contextmanager
def style() -> Iterator[None]:
    with plt.rc_context(STYLE):
        try:
            yield
        finally:
            plt.close("all")


def write_figure(path: Path, draw: Callable[P, Figure], *shown: P.args, **how: P.kwargs) -> list[Path]:
    """What `draw` makes of its arguments, as .png and .svg; a given suffix is taken off."""
    stem = path.with_suffix("") if path.suffix in (".png", ".svg", ".pdf") else path
    suffixes = dict.fromkeys((".png", ".svg", *([".pdf"] if path.suffix == ".pdf" else [])))
    written = [stem.with_name(f"{stem.name}{suffix}") for suffix in suffixes]
    with style():
        figure = draw(*shown, **how)
        for target in written:
            save(figure, target)
    return written


def save(figure: Figure, path: Path, mark: str = "", colours: int | None = None) -> None:
    """One file, in the format that its suffix names. The same figure gives the same bytes: there is no date in it.

    mark      is put among the file's metadata
    colours   of a PNG: in 256 it has a third of the bytes
    """
    kind, file = path.suffix.removeprefix("."), io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    marked = {{"png": "Source", "svg": "Identifier", "pdf": "Subject"}[kind]: mark} if mark else {}
    figure.savefig(file, format=kind, bbox_inches="tight", metadata={**undated, **marked})
    if kind == "png" and colours is not None:
        with Image.open(file) as image:
            told, fewer = PngInfo(), io.BytesIO()
            told.add_text("Source", mark)
            image.convert("RGB").quantize(colours).save(fewer, "png", optimize=True, pnginfo=told)
            file = fewer
    with explained(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, file.getvalue())
