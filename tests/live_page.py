"""A live page served in a thread of this process, and a run's folder that grows as a run makes it grow."""

import asyncio
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpac.cli.watch import free_port
from fedpac.engines.site import Failure, Job, Outcome
from fedpac.message import Message
from fedpac.report.web.live import make_app, make_server
from fedpac.runs.pulse import Pulse
from forged_runs import forge


@contextmanager
def served(folder: Path, token: str | None = None) -> Iterator[str]:
    port = free_port("127.0.0.1")
    server = make_server(make_app([folder], token), "127.0.0.1", port)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(10)


class Growing:
    """A federation of real sites, whose rounds come when the test says so."""

    def __init__(self, folder: Path, rounds: int = 6, clients: int = 5) -> None:
        self.folder = folder
        self.clients = clients
        whole = forge(folder.parent / "whole", rounds=rounds, clients=clients, weights=True)
        folder.mkdir()
        text = (whole / "config.toml").read_text()
        (folder / "config.toml").write_text(f'{text}engine = "flower"\n')
        self.tables = {}
        for path in whole.iterdir():
            header, *rows = path.read_text().splitlines(keepends=True)
            self.tables[path.name] = rows
            if path.name in ("metrics.csv", "rounds.csv", "weights.csv"):
                (folder / path.name).write_text(header)
            elif path.name != "config.toml":
                (folder / path.name).write_bytes(path.read_bytes())
        self.pulse = Pulse(folder)
        self.pulse.present(range(clients))

    def round(self, t: int) -> None:
        self.pulse.asked([Job("learn", i, t, Message()) for i in range(self.clients)])
        for name in ("weights.csv", "metrics.csv", "rounds.csv"):
            with (self.folder / name).open("a") as file:
                file.write("".join(row for row in self.tables[name] if row.startswith(f"{t},")))

    def answers(self, t: int, late: int, failed: int) -> None:
        """All but one answer; one of them fails. The others took a tenth of a second, long ago."""
        self.pulse.asked([Job("learn", i, t, Message()) for i in range(self.clients)])
        self.pulse.beat.since -= 60
        for i in range(self.clients):
            if i not in (late, failed):
                self.pulse.heard(Outcome(i))
        self.pulse.beat.seconds = [0.1]
        self.pulse.heard(Outcome(failed, error=Failure(failed, "lost", "site <b>gone</b>")))
        self.pulse._write()

    def finish(self) -> None:
        self.pulse.end()
        (self.folder / "summary.json").write_text("{}")


def dead_process() -> int:
    """The number of a process that has ended."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert platform.node()
    return pid
