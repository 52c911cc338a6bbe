"""The page of a run while it goes on: it reads the folder and sends what has changed. The run knows nothing of it."""

import asyncio
import hmac
import ipaddress
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from fedpac.errors import ConfigError, FedpacError, NotEvaluatedError
from fedpac.extras import library
from fedpac.report.web.contents import contents
from fedpac.report.web.page import page_html
from fedpac.report.web.status import status
from fedpac.runs.read import read_run
from fedpac.runs.run_data import RunData

LOOK = 0.5  # seconds between two looks at the folders
FEWER = 5.0  # times as long as reading them took: a huge run is looked at less often
KEPT = ("metrics.csv", "rounds.csv", "weights.csv", "scores.csv", "failures.csv", "summary.json", "config.toml")


class Watched:
    """The folders, read again only when they have changed, whoever asks."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self.lock = threading.Lock()
        self.mark: object = None
        self.text, self.next = json.dumps({**contents([]), "settings": []}), 0.0

    def contents(self, now: bool = False) -> str:
        with self.lock:
            mark = [_mark(folder / name) for folder in self.folders for name in KEPT]
            start = time.monotonic()
            if mark != self.mark and (now or start >= self.next):
                self.mark, self.text = mark, json.dumps(contents(self._runs()), separators=(",", ":"))
                self.next = start + FEWER * (time.monotonic() - start)
            return self.text

    def _runs(self) -> list[RunData]:
        found = []
        for folder in self.folders:
            try:
                found.append(read_run(folder))
            except (NotEvaluatedError, FedpacError):  # not yet, or a row is being written: the next look will do
                continue
        return found

    def status(self) -> list[dict[str, Any]]:
        return [status(folder) for folder in self.folders]


def _mark(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_app(folders: Sequence[Path], token: str | None, ended: Callable[[], bool] | None = None) -> Any:
    """A Starlette application with the page and its events, and no way to change anything.

    token   what a reader must know; None on a machine's own loopback, where pages of others are told by their Host
    ended   asked at every look: whether to send a last word and hang up
    """
    library("starlette", "live")
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

    watched = Watched(folders)
    title = "Live: " + ", ".join(folder.name for folder in folders)
    common = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}

    def refused(request: Request) -> Response | None:
        if token is None:
            host = request.headers.get("host", "").rpartition(":")[0].strip("[]") or request.headers.get("host", "")
            if not is_loopback(host):  # another site's name that leads here, so that its scripts may read us
                return PlainTextResponse("This page is only available on this machine.", 403)
        elif not hmac.compare_digest(request.query_params.get("token", "").encode(), token.encode()):
            return PlainTextResponse("The address lacks the token: use the address that fedpac printed.", 403)
        return None

    async def page(request: Request) -> Response:
        if (no := refused(request)) is not None:
            return no
        shown = json.loads(await run_in_threadpool(watched.contents))
        return HTMLResponse(page_html(shown, title, live=True), headers={**common, "X-Frame-Options": "DENY"})

    async def events(request: Request) -> Response:
        if (no := refused(request)) is not None:
            return no
        return StreamingResponse(
            _events(watched, ended, run_in_threadpool), media_type="text/event-stream", headers=common
        )

    return Starlette(routes=[Route("/", page), Route("/events", events)])


async def _events(watched: Watched, ended: Callable[[], bool] | None, aside: Any) -> AsyncIterator[str]:
    sent: dict[str, str] = {}
    while True:
        last = ended is not None and ended()  # first: what was written before the end is still sent
        runs = await aside(watched.status)
        last = last or all(run["state"] == "finished" for run in runs)
        new = {"status": json.dumps(runs), "contents": await aside(watched.contents, last)}
        for name, text in new.items():
            if sent.get(name) != text:
                sent[name] = text
                yield f"event: {name}\ndata: {text}\n\n"
        if last:
            yield "event: end\ndata: {}\n\n"
            return
        await asyncio.sleep(LOOK)


def make_server(app: Any, host: str, port: int) -> Any:
    uvicorn = library("uvicorn", "live")
    quiet = {"log_level": "critical", "access_log": False, "ws": "none"}
    return uvicorn.Server(uvicorn.Config(app, host, port, timeout_graceful_shutdown=1, **quiet))


def serve(app: Any, host: str, port: int, ended: Callable[[], bool] | None = None) -> None:
    """Until it is interrupted, or what it watches has ended. An address that is taken is an error."""
    uvicorn = library("uvicorn", "live")
    config = uvicorn.Config(
        app, host, port, log_level="critical", ws="none", access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)

    async def both() -> None:
        serving = asyncio.create_task(server.serve())
        while not serving.done():
            if ended is not None and ended():
                await asyncio.sleep(4 * LOOK)  # those who look on are told first
                server.should_exit = True
                await serving
            await asyncio.sleep(LOOK)
        await serving

    try:
        asyncio.run(both())
    except SystemExit:
        raise ConfigError(f"cannot listen on {host}:{port}: is the port in use? Choose another with --port") from None
