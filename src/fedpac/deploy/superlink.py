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
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import tomli_w
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedpac.deploy.certs import make_certificates
from fedpac.engines.lifeline import Parent, end_with_parent
from fedpac.errors import ConfigError, RunError
from fedpac.files import explained

START = 300.0  # seconds that SuperLink has to come up: a busy machine takes more than one minute
LOST = 3.0  # seconds without an answer, after which SuperLink is taken for dead
# what a stock SuperNode runs; a persistent site and this server do not
APP = "from fedpac.deploy.apps import client_app, server_app\n\n__all__ = ['client_app', 'server_app']\n"
PROJECT = {
    "project": {"name": "fedpac-app", "version": "1.0.0", "license": "Apache-2.0", "dependencies": []},
    "tool": {
        "flwr": {
            "app": {
                "publisher": "fedpac",
                "components": {"serverapp": "fedpac_app:server_app", "clientapp": "fedpac_app:client_app"},
            }
        }
    },
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def flower_environment(home: Path) -> dict[str, str]:
    """No telemetry, no look for updates, no waiting, and Flower's files in our folder."""
    programs = str(Path(sys.executable).parent)  # which start each other by name
    return os.environ | {
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)]),
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
        command += ["--isolation", "process", "--disable-runtime-dependency-installation"]  # the ServerApp is here
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
                raise RunError(f"Flower's SuperLink did not start; end of {log}:\n{tail}")
            time.sleep(0.05)

    def _listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @contextmanager
    def control(self) -> Iterator[ControlHttpClient]:
        """SuperLink's control API, which nobody but this machine can reach."""
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        client = ControlHttpClient.from_server_address(self.address, self.ca is None, self._ca_bytes(), [version])
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

    @contextmanager
    def run(self) -> Iterator[Grid]:
        """A new run, submitted as `flwr run` does; this process takes the place of its ServerApp."""
        self._submit()
        grid = HttpGrid(self.address, self.ca is None, self._ca_bytes(), token=self._take_task())
        grid._retry_invoker = patient(LOST)
        runtime = grid._runtime_client
        given = runtime.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
            given.task_id, given.run.run_id, given.context.node_id,
        )  # fmt: skip
        grid.set_run(run_from_proto(given.run))
        alive = HeartbeatSender(lambda: _beat(runtime))
        alive.start()
        how = SubStatus.FAILED
        try:
            yield grid
            how = SubStatus.COMPLETED
        finally:
            alive.stop()
            with suppress(httpx.HTTPError):
                runtime.PushTaskOutput(PushTaskOutputRequest(sub_status=how))
            grid.close()

    def _submit(self) -> None:
        files = {"pyproject.toml": tomli_w.dumps(PROJECT).encode(), "fedpac_app.py": APP.encode()}
        fab, _ = build_fab_from_files(files)
        with self.control() as control:
            control.StartRun(StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {}))))

    def _take_task(self) -> str:
        """The token of the run's ServerApp."""
        version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
        client = RuntimeHttpClient.from_server_address(self.address, self.ca is None, self._ca_bytes(), [version])
        with client as runtime:
            begun = time.monotonic()
            while time.monotonic() - begun < START:
                if token := runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])).token:
                    return str(token)
                time.sleep(0.05)
        raise RunError(f"SuperLink did not accept the run; see {self.folder / 'superlink.log'}")

    def _ca_bytes(self) -> bytes | None:
        return self.ca.read_bytes() if self.ca is not None else None


def _beat(runtime: RuntimeHttpClient) -> bool:
    with suppress(httpx.HTTPError):
        return bool(runtime.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
    return False


def patient(seconds: float) -> RetryInvoker:
    """Tries a call again for a while, if it did not get through or the other end has trouble."""

    def refused(error: Exception) -> bool:
        return isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500

    retried = (httpx.TransportError, httpx.HTTPStatusError)
    return RetryInvoker(lambda: exponential(base_delay=0.2, max_delay=5), retried, None, seconds, should_giveup=refused)
