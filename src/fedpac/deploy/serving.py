"""A federation's server: SuperLink behind the gate, and a run in a ServerApp, started again if it ends early."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from fedpac.deploy.certs import read_public_key
from fedpac.deploy.conductor import ERROR
from fedpac.deploy.gate import Filter, Gate
from fedpac.deploy.superlink import SuperLink
from fedpac.errors import RunError
from fedpac.files import write_atomically

STARTS = 20  # of a run that ends without a result and without an error: its process was killed
GLANCE = 0.5  # seconds between two looks at a run

Say = Callable[[str], None]


def read_keys(certificates: Path, sites: list[str]) -> dict[str, bytes]:
    return {site: read_public_key(certificates / "sites" / f"{site}.pub") for site in sites}


class Service:
    """A SuperLink behind its gate, with the sites' keys registered: everything that a run needs but the sites."""

    def __init__(self, folder: Path, host: str, port: int, certificates: Path | None, sites: list[str]) -> None:
        self.keys = read_keys(certificates, sites) if certificates is not None else {}
        self.link = SuperLink(folder, secure=certificates is not None)
        self.gate = Gate(host, port, Filter(self.link.url, self.link.ca), certificates)

    def __enter__(self) -> Self:
        self.gate.start()  # first: an address that is taken is told at once
        try:
            self._up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _up(self) -> None:
        self.link.start()
        if self.keys:
            self.link.register(self.keys)
            known = {site: key.hex() for site, key in self.keys.items()}
            write_atomically(self.link.folder / "keys.json", json.dumps(known).encode(), mode=0o600)

    def __exit__(self, *error: object) -> None:
        self.gate.stop()
        self.link.stop()

    def carry_out(self, settings: Mapping[str, Any], out: Path, say: Say) -> None:
        """The run, until it has a result; it goes on from its checkpoint if its process or SuperLink is lost."""
        if self.keys:
            settings = {**settings, "keys": str(self.link.folder / "keys.json")}
        settings = {**settings, "out": str(out.absolute())}
        log = self.link.folder / "run.log"
        settings = {**settings, "log": str(log)}
        (out / ERROR).unlink(missing_ok=True)
        for _ in range(STARTS):
            log.write_text("")
            how = self._follow(settings, log, say)
            if (out / "summary.json").exists():
                return
            if (out / ERROR).exists():
                raise RunError((out / ERROR).read_text().strip())
            say(f"the run was cut off ({how}); going on from its checkpoint")
            time.sleep(1.0)
        raise RunError(f"the run was cut off {STARTS} times; see {self.link.folder / 'superlink.log'}")

    def _follow(self, settings: Mapping[str, Any], log: Path, say: Say) -> str:
        """Start the run and pass on what it says, until it ends; gives back how."""
        try:
            if not self.link.alive:
                self._up()
            run = self.link.submit(settings)
            with log.open() as lines:
                how = None
                while how is None:
                    how = self.link.ended(run)
                    for line in lines:
                        say(line.rstrip("\n"))
                    time.sleep(GLANCE)
                return how
        except httpx.HTTPError as error:
            self.link.stop()  # one that does not answer is of no use
            return f"SuperLink is gone: {error}"
