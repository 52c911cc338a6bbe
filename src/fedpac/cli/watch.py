"""fedpac watch, and what `fedpac run --live` starts."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import LOOK, app, examples, on_interrupt, out
from fedpac.errors import ConfigError, RunError

PORT = 8765


@app.command(
    rich_help_panel=LOOK,
    epilog=examples(
        "fedpac watch runs/fedpac",
        "fedpac watch runs/fedpac --host 0.0.0.0 --port 9000",
    ),
)
def watch(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)],
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. Beyond this machine, readers need the token in the printed address."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help=f"Default: {PORT}, or any free port.", show_default=False)
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve a live page of runs: growing charts, sites that are up, late or failed, and the time left.

    It only reads the folders, so you can start, close or kill it at any time without affecting the run.
    """
    from fedpac.report.web.live import is_loopback, make_app, serve

    if parent is None and (missing := [folder for folder in folders if not (folder / "config.toml").is_file()]):
        raise RunError(f"{missing[0]} is not a run folder: it has no config.toml")
    token = None if is_loopback(host) else secrets.token_urlsafe(16)
    chosen = port or free_port(host)
    ended = None if parent is None else (lambda: os.getppid() != parent)
    page = make_app(folders, token, ended)
    address = url(host, chosen) + (f"?token={token}" if token else "")
    out.print(f"Live page: {escape(address)}   (Ctrl-C stops the page, not the run)", soft_wrap=True)
    if browser:
        webbrowser.open(address)
    with on_interrupt(lambda: "the run continues"):
        serve(page, host, chosen, ended)


def start_beside(folders: Sequence[Path]) -> str:
    """The page of runs that this process is about to carry out, in a process of its own; returns its address."""
    from fedpac.extras import library

    for name in ("starlette", "uvicorn"):
        library(name, "live")
    port = free_port("127.0.0.1")
    command = [sys.executable, "-m", "fedpac", "watch", *map(str, folders), "--port", str(port)]
    nowhere = subprocess.DEVNULL
    command += ["--parent", str(os.getpid())]
    subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
    return url("127.0.0.1", port)


def url(host: str, port: int) -> str:
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"


def free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (PORT, 0):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, wanted))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigError(f"'{host}' is not an address of this machine; try 127.0.0.1")
