"""A federation's server: SuperLink behind the gate, and a run over it, which goes on if SuperLink is lost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

import httpx

from fedpac.callbacks import Callbacks
from fedpac.deploy.certs import read_public_key
from fedpac.deploy.conductor import Plan, conduct_federation
from fedpac.deploy.gate import Filter, Gate
from fedpac.deploy.superlink import SuperLink
from fedpac.errors import RunError

STARTS = 20  # of SuperLink, in one run

Say = Callable[[str], None]


class Service:
    """A SuperLink behind its gate, with the sites' keys registered: everything that a run needs but the sites."""

    def __init__(self, folder: Path, host: str, port: int, certificates: Path | None, sites: list[str]) -> None:
        files = {site: certificates / "sites" / f"{site}.pub" for site in sites} if certificates is not None else {}
        self.keys = {site: read_public_key(file) for site, file in files.items()}
        self.link = SuperLink(folder, secure=certificates is not None)
        self.closed = False
        self.gate = Gate(host, port, Filter(self.link.url, self.link.ca, self.keys.values()), certificates)

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
        self.link.register(self.keys)

    def __exit__(self, *error: object) -> None:
        self.closed = True  # for a run in another thread: it must not start SuperLink again
        self.gate.stop()
        self.link.stop()

    def carry_out(self, plan: Plan, say: Say, callbacks: Callbacks | None = None) -> None:
        """The run, until it has a result; if SuperLink is lost, it is started again, and the run goes on."""
        plan = replace(plan, keys={key: site for site, key in self.keys.items()} or None)
        for _ in range(STARTS):
            try:
                if not self.link.alive:
                    self._up()
                with self.link.run() as grid:
                    return conduct_federation(grid, plan, say, callbacks)
            except httpx.HTTPError as error:
                if self.closed:
                    raise RunError("the server was stopped in the middle of a run") from None
                self.link.stop()  # one that does not answer is of no use
                say(f"SuperLink was lost ({error}); restarting it and resuming from the last checkpoint")
        raise RunError(f"SuperLink was lost {STARTS} times; see {self.link.folder / 'superlink.log'}")
