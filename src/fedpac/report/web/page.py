"""Puts what there is to show and what draws it into one HTML file that asks nothing of the network."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedpac.errors import RunError
from fedpac.files import explained, write_atomically
from fedpac.report.web.contents import contents
from fedpac.runs.run_data import RunData
from fedpac.version import __version__

SCRIPTS = ("dom.js", "accuracy.js", "calibration.js", "weights.js", "page.js")
LIVE = "live.js"


def report_html(runs: Sequence[RunData]) -> str:
    return page_html(contents(runs), "Federated learning report")


def write_report(runs: Sequence[RunData], file: Path) -> int:
    """The report as a file; returns its size in bytes."""
    if not runs:
        raise RunError("there are no runs to report on")
    data = report_html(runs).encode()
    with explained(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, data)
    return len(data)


def page_html(shown: Mapping[str, Any], title: str, live: bool = False) -> str:
    style = asset("page.css")
    script = '"use strict";\n' + "".join(asset(name) for name in (*SCRIPTS, *([LIVE] if live else [])))
    values = {
        "policy": policy(style, script, live),
        "title": escape(title),
        "style": style,
        "status": asset("status.html") if live else "",
        "plain": plain(shown),
        "version": __version__,
        "contents": json.dumps(shown, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "script": script,
    }
    first, *pieces = asset("page.html").split("@")  # once through the template: what is put in is never looked at again
    return first + "".join(values.get(piece, piece) for piece in pieces)


def policy(style: str, script: str, live: bool) -> str:
    """Only our own style and script run, whatever else gets into the page; nothing is fetched."""

    def mark(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    wire = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; {wire}img-src data:; style-src {mark(style)}; script-src {mark(script)}; base-uri 'none'"
    )


def plain(shown: Mapping[str, Any]) -> str:
    """For a browser without scripts: what came out, in words."""
    said = [f"<h2>{escape(s['title'])}</h2><p>{escape(' '.join(s['words']))}</p>" for s in shown["settings"]]
    return "<p>The charts need JavaScript. In words:</p>" + "".join(said)


def asset(name: str) -> str:
    return files("fedpac.report.web").joinpath("assets", name).read_text(encoding="utf-8")
