"""A federation on this machine, for a trial: SuperLink, gate and sites as processes of their own, with TLS and keys."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedpac.config import Config
from fedpac.data.scenario import build
from fedpac.deploy.certs import make_certificates
from fedpac.deploy.serving import Service
from fedpac.deploy.superlink import end, flower_environment, free_port, start
from fedpac.privacy import KEY


def run_trial(config: Config, out: Path, data_dir: Path | None, say: Callable[[str], None]) -> None:
    """The config's run with all its clients as sites here. Their states and models are in the run's folder."""
    clients = len(build(config.data, config.run.seed, data_dir).clients)
    with tempfile.TemporaryDirectory(prefix="fedpac-") as scratch, ExitStack() as stack:
        folder = Path(scratch)
        sites = [f"client-{i}" for i in range(clients)]
        certificates = folder / "certs"
        make_certificates(certificates, ["localhost"], sites)
        stated = folder / "config.toml"
        stated.write_text(config.to_toml())
        service = stack.enter_context(Service(folder / "server", "127.0.0.1", free_port(), certificates, sites))
        state = out.parent / f"{out.name}-sites"
        key = ("--ckks", str(state / KEY)) if config.privacy.encryption == "ckks" else ()  # the first site makes it
        for site in sites:
            stack.enter_context(
                simulated_site(service.gate.address, site, certificates, state / site, stated, data_dir, folder, *key)
            )
        settings = {"config": str(stated), "data-dir": str(data_dir.absolute()) if data_dir else ""}
        service.carry_out(settings, out, say)


@contextmanager
def simulated_site(
    address: str,
    site: str,
    certificates: Path,
    state: Path,
    config: Path,
    data_dir: Path | None,
    folder: Path,
    *more: str,
) -> Iterator["subprocess.Popen[bytes]"]:
    """`fedpac join` with one client of a scenario as its data, until the context ends."""
    command = [sys.executable, "-m", "fedpac.cli", "join", address, "--name", site, "--state", str(state)]
    command += ["--ca", str(certificates / "ca.crt"), "--key", str(certificates / "sites" / f"{site}.key")]
    command += ["--simulated", str(config), *more]
    if data_dir is not None:
        command += ["--data", str(data_dir)]
    process = start(command, flower_environment(folder / "flwr"), folder / f"{site}.log")
    try:
        yield process
    finally:
        end(process)
