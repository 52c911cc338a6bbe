"""Flower's own programs from end to end: SuperLink, SuperNodes and `flwr run` of the example project, TLS and keys."""

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import command, listening, running, until

from fedpac.config import make_config
from fedpac.deploy.certs import make_certificates
from fedpac.deploy.superlink import flower_environment, free_port, program
from fedpac.deploy.trial import join_command
from fedpac.runs.execute import run

pytestmark = pytest.mark.slow  # a process for every message

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
SITES = ("clinic-a", "clinic-b")
SETTINGS = {"model": "logistic", "run.rounds": 2, "method.name": "scaffold"}


@pytest.fixture
def folder(tmp_path):
    """The example with its data, and certificates and keys."""
    shutil.copytree(EXAMPLE, tmp_path / "example")
    subprocess.run([sys.executable, "make_data.py"], cwd=tmp_path / "example", check=True)
    make_certificates(tmp_path / "certs", ["localhost"], SITES)
    return tmp_path


def flwr(folder, *arguments):
    done = subprocess.run(
        [program("flwr"), *map(str, arguments)], env=flower_environment(folder / "flwr"), cwd=folder,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def stock(folder):
    """Every command is Flower's."""
    certs, port = folder / "certs", free_port()
    (folder / "flwr").mkdir()
    (folder / "flwr" / "config.toml").write_text(
        f'[superlink.tls]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{certs / "ca.crt"}"\n'
    )
    superlink = ["--host", "127.0.0.1", "--port", str(port), "--ssl-ca-certfile", str(certs / "ca.crt")]
    superlink += ["--ssl-certfile", str(certs / "server.crt"), "--ssl-keyfile", str(certs / "server.key")]
    superlink += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    with ExitStack() as stack:
        stack.enter_context(running([program("flower-superlink"), *superlink], folder, "superlink"))
        until(lambda: listening(port), 60, "SuperLink is there")
        for site in SITES:
            flwr(folder, "supernode", "register", certs / "sites" / f"{site}.pub", "tls", "--name", site)
            about = f'site="{site}" data="{folder / "example" / "data" / site}" state="{folder / "stock" / site}"'
            node = ["--superlink", f"127.0.0.1:{port}", "--root-certificates", str(certs / "ca.crt")]
            node += ["--auth-supernode-private-key", str(certs / "sites" / f"{site}.key")]
            node += ["--node-config", about, "--port", str(free_port())]
            stack.enter_context(running([program("flower-supernode"), *node], folder, site))
        given = {**SETTINGS, "out": str(folder / "run"), "patience": 300.0}
        stated = " ".join(f"{key}={json.dumps(value)}" for key, value in given.items())
        return flwr(folder, "run", folder / "example", "tls", "--stream", "-c", stated)


def persistent(folder):
    """The same run with fedpac's own server and sites; one of them is a stock SuperNode."""
    port = free_port()
    (folder / "federation.toml").write_text(
        'model = "logistic"\nmethod = "scaffold"\ntraining = {batch = 10}\nrun = {rounds = 2, evaluate_every = 1}\n'
        "federation = {sites = ['clinic-a', 'clinic-b'], classes = 10, shape = [1, 28, 28]}\n"
    )
    serve = ["serve", folder / "federation.toml", "--address", f"127.0.0.1:{port}", "--certs", folder / "certs"]
    with ExitStack() as stack:
        server = stack.enter_context(command(folder, *serve, "--out", folder / "ours", "--patience", 300))
        for site, more in zip(SITES, ([], ["--stock"]), strict=True):
            joining = join_command(f"127.0.0.1:{port}", site, folder / "certs", folder / "state" / site)
            data = ["--data", str(folder / "example" / "data" / site)]
            stack.enter_context(running([*joining, *data, *more], folder, f"ours-{site}"))
        assert server.wait(600) == 0, server.log.read_text()


def serial(folder):
    """The same run as a simulation, on the same files."""
    clients = folder / "clients"
    clients.mkdir()
    for site in SITES:
        shutil.copy(folder / "example" / "data" / site / "samples.npz", clients / f"{site}.npz")
    run(
        make_config(
            {
                "model": "logistic", "method": "scaffold", "training": {"batch": 10},
                "data": {"scenario": "natural", "path": str(clients)},
                "run": {"rounds": 2, "evaluate_every": 1, "engine": "serial"},
            }
        ),
        folder / "serial",
    )  # fmt: skip


def test_the_example_runs_on_stock_flower_with_the_same_numbers(folder):
    said = stock(folder)
    assert "round 2/2" in said
    persistent(folder)
    serial(folder)
    metrics = {(folder / out / "metrics.csv").read_bytes() for out in ("run", "ours", "serial")}
    assert len(metrics) == 1
    assert "--token" not in (folder / "run" / "environment.json").read_text()  # of Flower's, for this run
    for site in SITES:
        for state in ("stock", "state"):
            (kept,) = (folder / state / site).glob("*/report.md")
            assert f"# {site}" in kept.read_text()
