"""A federation of real processes on this machine: SuperLink, the gate, a ServerApp per run, and a process per site."""

import contextlib
import os
import subprocess
import sys
import time
from contextlib import contextmanager

from fedpac.deploy.certs import make_certificates
from fedpac.deploy.serving import Service
from fedpac.deploy.superlink import end, flower_environment, free_port, start
from fedpac.deploy.trial import simulated_site

SITES = 4


class Federation:
    """TLS, node keys, four registered sites; sites run from `join`, runs from `run`."""

    def __init__(self, folder, sites=SITES):
        self.folder = folder
        self.names = [f"client-{i}" for i in range(sites)]
        self.certificates = folder / "certs"
        make_certificates(self.certificates, ["localhost"], self.names)
        self.service = Service(folder / "server", "127.0.0.1", free_port(), self.certificates, self.names)
        self.said = []

    @property
    def address(self):
        return self.service.gate.address

    def join(self, client, config, *more):
        site = self.names[client]
        state = self.folder / "state" / site
        return simulated_site(self.address, site, self.certificates, state, config, None, self.folder, *more)

    def run(self, config, out, **settings):
        """The run, and what was said."""
        stated = self.folder / f"{out.name}.toml"
        stated.write_text(config.to_toml())
        said = []
        self.service.carry_out({"config": str(stated), **settings}, out, said.append)
        return said


@contextmanager
def command(folder, *arguments):
    """A fedpac command as a process whose output goes to a file; ended with the context."""
    log = folder / f"command-{time.monotonic_ns()}.log"
    process = start([sys.executable, "-m", "fedpac", *map(str, arguments)], flower_environment(folder / "f"), log)
    process.log = log
    try:
        yield process
    finally:
        end(process)


def finished(folder, *arguments, patience=60):
    """(exit code, output) of a fedpac command that ends by itself."""
    with command(folder, *arguments) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        return process.poll(), process.log.read_text()


def until(condition, patience, what):
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < patience, f"not within {patience} s: {what}"
        time.sleep(0.1)


def rounds_in(folder):
    path = folder / "rounds.csv"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
