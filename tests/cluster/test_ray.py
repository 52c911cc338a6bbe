"""Runs every test that is marked `ray` on a cluster in a network namespace, where nobody can reach it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WHERE = ["tests/cluster/on_a_cluster.py", "tests/test_engines.py", "tests/testing", "tests/contract/test_digits.py"]


def alone(*command: str, timeout: float = 600, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The command in a network namespace that has a loopback interface and nothing else."""
    if not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs unshare and ip")
    for how in (["--net"], ["--net", "--map-root-user"]):
        if subprocess.run(["unshare", *how, "true"], capture_output=True).returncode == 0:
            inside = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
            return subprocess.run(
                ["unshare", *how, *inside], env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True,
                timeout=timeout,
            )  # fmt: skip
    pytest.skip("this user may not make a network namespace")


def run_marked(expression: str, timeout: float) -> None:
    places = [ROOT / "src", ROOT / "tests", ROOT / "tests" / "cluster", ROOT / "tests" / "testing", ROOT]
    done = alone(
        sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-p", "ray_cluster", "-m", expression, *WHERE,
        timeout=timeout, PYTHONPATH=os.pathsep.join(map(str, places)), FEDPAC_RAY_CLUSTER="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_on_a_cluster_of_two_nodes():
    run_marked("ray and not slow", timeout=300)


@pytest.mark.slow
def test_all_methods_on_a_cluster_and_a_node_that_is_lost():
    run_marked("ray and slow", timeout=900)


@pytest.mark.slow
def test_the_command_line_starts_a_cluster_of_its_own(tmp_path):
    def run(engine: str) -> dict[str, bytes]:
        folder = tmp_path / engine
        quick = ["--method", "fedpac", "--dataset", "digits", "--clients", "4", "--rounds", "3", "--no-figures"]
        command = [sys.executable, "-m", "fedpac", "run", *quick, "--engine", engine, "--out", str(folder)]
        done = alone(*command, PYTHONPATH=str(ROOT / "src"))
        assert done.returncode == 0, done.stdout + done.stderr
        return {name: (folder / name).read_bytes() for name in ("metrics.csv", "weights.csv")}

    assert run("ray") == run("serial")
