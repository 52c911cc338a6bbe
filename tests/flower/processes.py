"""A federation of real processes on this machine: SuperLink, the gate, a ServerApp per run, and a process per site."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from flwr.proto.control_pb2 import ListNodesRequest

from fedpac.deploy.certs import make_certificates
from fedpac.deploy.conductor import Plan
from fedpac.deploy.serving import Service
from fedpac.deploy.superlink import end, flower_environment, free_port, start
from fedpac.deploy.trial import simulated_site

SITES = 4
HERE = Path(__file__).parent
MEANT = (None, 0, 130, -signal.SIGTERM, -signal.SIGKILL)  # it is there, has done its work, or a test has ended it
STARTED: "list[subprocess.Popen[bytes]]" = []  # who is watched while a test waits


class Federation:
    """TLS, node keys, four registered sites; sites run from `join`, runs from `run`."""

    def __init__(self, folder, sites=SITES, host="127.0.0.1"):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.names = [f"client-{i}" for i in range(sites)]
        self.certificates = folder / "certs"
        make_certificates(self.certificates, [host], self.names)
        self.service = Service(folder / "server", host, free_port(), self.certificates, self.names)
        self.said = []

    @property
    def address(self):
        return self.service.gate.address

    @contextmanager
    def join(self, client, config, *more, before=()):
        site = self.names[client]
        state = self.folder / "state" / site
        with (
            simulated_site(
                self.address, site, self.certificates, state, config, None, self.folder, *more, before=before
            ) as process,
            watched(process, self.folder / f"{site}.log"),
        ):
            yield process

    def odd(self, behaviour, client, config):
        """A site that misbehaves; the log of what it says is in its `log`."""
        site = self.names[client]
        state = self.folder / "state" / site
        arguments = [behaviour, self.address, self.certificates, site, state, config]
        return running([sys.executable, str(HERE / "odd_site.py"), *map(str, arguments)], self.folder, site)

    def nodes(self):
        """Site -> its node as SuperLink lists it."""
        keys = {key: site for site, key in self.service.keys.items()}
        with self.service.link.control() as control:
            return {keys[bytes(node.public_key)]: node for node in control.ListNodes(ListNodesRequest()).nodes_info}

    def node_of(self, site):
        return self.nodes()[site].node_id

    def until_online(self, count, patience=60):
        def online():
            return sum(node.status == "online" for node in self.nodes().values()) >= count

        until(online, patience, f"{count} sites online")

    def run(self, config, out, say=None, **settings):
        """The run, and what was said."""
        said = []
        self.service.carry_out(Plan(config, out, **settings), say or said.append)
        return said


@contextmanager
def running(command, folder, name):
    """A process whose output goes to a file; ended with the context."""
    log = folder / f"{name}.log"
    process = start(command, flower_environment(folder / "flwr"), log)
    try:
        with watched(process, log):
            yield process
    finally:
        end(process)


@contextmanager
def watched(process, log):
    """While this process is there, whoever waits is told if it fails."""
    process.log = log
    STARTED.append(process)
    try:
        yield
    finally:
        STARTED.remove(process)


def command(folder, *arguments):
    """A fedpac command as a process."""
    name = f"command-{time.monotonic_ns()}"
    return running([sys.executable, "-m", "fedpac", *map(str, arguments)], folder, name)


@contextmanager
def end_later(pool):
    """A pool that is not waited for if a test fails: its run ends with the SuperLink."""
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def finished(folder, *arguments, patience=60):
    """(exit code, output) of a fedpac command that ends by itself."""
    with command(folder, *arguments) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        return process.poll(), process.log.read_text()


def until(condition, patience, what):
    """Waits, but not for what a process that has failed was to do."""
    begun = time.monotonic()
    while not condition():
        for process in STARTED:
            assert process.poll() in MEANT, f"{what}: a process ended with {process.poll()}:\n{process.log.read_text()}"
        assert time.monotonic() - begun < patience, f"not within {patience} s: {what}\n{logs()}"
        time.sleep(0.1)


def logs(lines=20):
    """The ends of what the processes have said."""
    said = [(process.log, process.log.read_text().splitlines()[-lines:]) for process in STARTED]
    return "\n".join("\n".join([f"{log.name}:", *tail]) for log, tail in said)


def listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def rounds_in(folder):
    path = folder / "rounds.csv"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
