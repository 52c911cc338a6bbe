"""A federation on this machine, for a trial: SuperLink, gate and sites as processes of their own, with TLS and keys."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedpac.callbacks import Callbacks
from fedpac.config import Config
from fedpac.data.scenario import build
from fedpac.deploy.certs import make_certificates
from fedpac.deploy.conductor import Plan, federation_id
from fedpac.deploy.desk import folder_of, selected_in
from fedpac.deploy.scratch import scratch_folder
from fedpac.deploy.serving import Service
from fedpac.deploy.superlink import end, flower_environment, free_port, start
from fedpac.engines.store import FolderStore
from fedpac.privacy import KEY
from fedpac.runs.checkpoint import write_checkpoint
from fedpac.runs.execute import fingerprint, saved_state
from fedpac.runs.folder import CHECKPOINT, SELECTED, RunStore


def run_trial(
    config: Config, out: Path, data_dir: Path | None, say: Callable[[str], None], callbacks: Callbacks | None = None
) -> None:
    """The config's run with all its clients as sites here. Their states and models are in a folder beside the run's."""
    clients = len(build(config.data, config.run.seed, data_dir).clients)
    sites = [f"client-{i}" for i in range(clients)]
    state = out.parent / f"{out.name}-sites"
    with scratch_folder() as folder, ExitStack() as stack:
        certificates = folder / "certs"
        make_certificates(certificates, ["localhost"], sites)
        stated = folder / "config.toml"
        stated.write_text(config.to_toml())
        service = stack.enter_context(Service(folder / "server", "127.0.0.1", free_port(), certificates, sites))
        key = ("--ckks", str(state / KEY)) if config.privacy.encryption == "ckks" else ()  # the first site makes it
        for site in sites:
            stack.enter_context(
                simulated_site(service.gate.address, site, certificates, state / site, stated, data_dir, folder, *key)
            )
        service.carry_out(Plan(config, out, data_dir=data_dir), say, callbacks)
    _bring_home(config, out, state, sites)


def _bring_home(config: Config, out: Path, state: Path, sites: list[str]) -> None:
    """The sites of a trial are simulated: their states go into the checkpoint, from where other commands take them."""
    folders = [folder_of(state / site, federation_id(out)) for site in sites]
    kept = {CHECKPOINT: folders, SELECTED: [selected_in(folder) for folder in folders]}
    for name, places in kept.items():
        if (saved := saved_state(RunStore(out), config, name)) is not None:
            states = {client: FolderStore(folder).newest(client) for client, folder in enumerate(places)}
            states = {client: state for client, state in states.items() if state}
            write_checkpoint(out / name, fingerprint(config), saved.round, saved.server, states)


def join_command(address: str, site: str, certificates: Path, state: Path) -> list[str]:
    """`fedpac join`, but for the data."""
    command = [sys.executable, "-m", "fedpac", "join", address, "--name", site, "--state", str(state)]
    return [*command, "--ca", str(certificates / "ca.crt"), "--key", str(certificates / "sites" / f"{site}.key")]


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
    before: Sequence[str] = (),
) -> Iterator["subprocess.Popen[bytes]"]:
    """`fedpac join` with one client of a scenario as its data, until the context ends.

    before   a command that starts others, such as `ip netns exec`
    """
    command = [*before, *join_command(address, site, certificates, state), "--simulated", str(config), *more]
    if data_dir is not None:
        command += ["--data", str(data_dir)]
    process = start(command, flower_environment(folder / "flwr"), folder / f"{site}.log")
    try:
        yield process
    finally:
        end(process)
