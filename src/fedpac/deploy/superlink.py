"""Flower's programs, started from here: SuperLink on this machine's loopback, its control API and its runs."""

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import tomli_w
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import Status
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

from fedpac.deploy.certs import make_certificates
from fedpac.engines.lifeline import Parent, end_with_parent
from fedpac.errors import ConfigError, RunError
from fedpac.files import explained

START = 60.0  # seconds that SuperLink has to come up
APP = "from fedpac.deploy.apps import client_app, server_app\n\n__all__ = ['client_app', 'server_app']\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def flower_environment(home: Path) -> dict[str, str]:
    """No telemetry, no look for updates, no waiting, and Flower's files in our folder."""
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    }


def program(name: str) -> str:
    """One of Flower's programs, from the environment that this Python is of."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ConfigError(f"there is no {path}: pip install 'fedpac[flower]'")
    return str(path)


def start(command: list[str], environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """A process that ends with this one, however this one ends."""
    parent = Parent(os.getpid(), main_thread=True)  # a thread that watches would not survive the exec
    with explained(log), log.open("a") as output:
        return subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            preexec_fn=lambda: end_with_parent(parent),
        )  # fmt: skip


def end(process: "subprocess.Popen[bytes]", patience: float = 5.0) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


class SuperLink:
    """Flower's server on this machine's loopback. Its database is in the folder, so that it can be started again.

    secure   with TLS, by a certificate made for the loopback, and with a registered key for every node
    """

    def __init__(self, folder: Path, secure: bool) -> None:
        self.folder = folder.absolute()
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.rmtree(self.folder / "loopback", ignore_errors=True)
        self.certificates = self.folder / "loopback" if secure else None
        if self.certificates is not None:
            make_certificates(self.certificates, ["localhost"], [])
        self.port = free_port()
        self.environment = flower_environment(self.folder / "flwr")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http{'s' if self.certificates else ''}://{self.address}"

    @property
    def ca(self) -> Path | None:
        return self.certificates / "ca.crt" if self.certificates is not None else None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        if self.process is not None:
            end(self.process)

    def start(self) -> None:
        certificates = self.certificates
        command = [program("flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.folder / "state.db"), "--disable-runtime-dependency-installation"]
        if certificates is None:
            command.append("--insecure")
        else:
            command += ["--ssl-ca-certfile", str(certificates / "ca.crt"), "--enable-supernode-auth"]
            command += ["--ssl-certfile", str(certificates / "server.crt")]
            command += ["--ssl-keyfile", str(certificates / "server.key")]
        log = self.folder / "superlink.log"
        self.process = start(command, self.environment, log)
        begun = time.monotonic()
        while not self._listening():
            if not self.alive or time.monotonic() - begun > START:
                tail = "".join(log.read_text().splitlines(keepends=True)[-5:])
                raise RunError(f"Flower's SuperLink did not come up; the end of {log}:\n{tail}")
            time.sleep(0.05)

    def _listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @contextmanager
    def control(self) -> Iterator[ControlHttpClient]:
        """SuperLink's control API, which nobody but this machine can reach."""
        ca = self.ca.read_bytes() if self.ca is not None else None
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        client = ControlHttpClient.from_server_address(self.address, ca is None, ca, [version])
        try:
            yield client
        finally:
            client.close()

    def register(self, keys: Mapping[str, bytes]) -> None:
        """Let these nodes in. Those that are registered already stay so."""
        with self.control() as control:
            for name, key in keys.items():
                try:
                    control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
                except httpx.HTTPStatusError as error:
                    if "already" not in error.response.text:
                        raise RunError(
                            f"the key of site '{name}' cannot be registered: {error.response.text}"
                        ) from None

    def submit(self, settings: Mapping[str, Any]) -> int:
        """Start a run, as `flwr run` does; gives back its number."""
        files = {"pyproject.toml": tomli_w.dumps(_project(settings)).encode(), "fedpac_app.py": APP.encode()}
        fab, _ = build_fab_from_files(files)
        with self.control() as control:
            proto = fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {}))
            return int(control.StartRun(StartRunRequest(fab=proto)).run_id)

    def ended(self, run: int) -> str | None:
        """How the run ended; None while it goes on."""
        with self.control() as control:
            status = control.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return f"{status.sub_status}: {status.details}" if status.status == Status.FINISHED else None


def _project(settings: Mapping[str, Any]) -> dict[str, Any]:
    components = {"serverapp": "fedpac_app:server_app", "clientapp": "fedpac_app:client_app"}
    return {
        "project": {"name": "fedpac-app", "version": "1.0.0", "license": "Apache-2.0", "dependencies": []},
        "tool": {"flwr": {"app": {"publisher": "fedpac", "components": components, "config": dict(settings)}}},
    }
