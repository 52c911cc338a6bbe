"""Commands that are killed: no process of theirs is left, whatever they were doing."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from random import Random

import pytest

COMMAND = [sys.executable, "-m", "fedpac", "run", "--method", "fedavg", "--dataset", "digits", "--clients", "10"]
MOMENTS = 20
AT_ONCE = 5


def processes_of(mark: str) -> list[int]:
    """Every process that has the mark in its environment, which it has from whoever started it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment, state = (entry / "environ").read_bytes(), (entry / "stat").read_text().rpartition(")")[2]
            except OSError:
                continue
            if mark.encode() in environment and state.split()[0] != "Z":
                found.append(int(entry.name))
    return found


def start(folder: Path, mark: str, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *more, "--out", str(folder)],
        env={**os.environ, "FEDPAC_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_is_left_of_a_run_that_is_killed(tmp_path):
    """At 20 random moments: every other one while the command starts, the others while its workers train."""
    random = Random(0)
    for _ in range(0, MOMENTS, AT_ONCE):
        runs = []
        for place in range(AT_ONCE):
            mark = uuid.uuid4().hex
            ways = ["--rounds", "5000", "--engine", "process", "--workers", "2"]
            runs.append((start(tmp_path / mark, mark, *ways), mark, place % 2 == 0))
        time.sleep(random.uniform(0, 0.5))
        for run, mark, training in runs:
            if training:
                workers_of(run, mark)
            time.sleep(random.uniform(0, 1.5))
            run.send_signal(random.choice([signal.SIGTERM, signal.SIGKILL]))
        for run, _, _ in runs:
            assert run.wait(timeout=5) != 0, "it ended before it was killed"
        deadline = time.monotonic() + 5
        while (left := [pid for _, mark, _ in runs for pid in processes_of(mark)]) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left


def workers_of(run: subprocess.Popen[bytes], mark: str) -> list[int]:
    """Waits until there are some."""
    deadline = time.monotonic() + 60
    while not (workers := [pid for pid in processes_of(mark) if pid != run.pid]):
        assert time.monotonic() < deadline, "no workers within a minute"
        time.sleep(0.02)
    return workers


def until_trained(run: subprocess.Popen[bytes], folder: Path) -> None:
    """Waits for the first round."""
    deadline, rounds = time.monotonic() + 60, folder / "rounds.csv"
    while not (rounds.exists() and len(rounds.read_bytes().splitlines()) > 1):
        assert run.poll() is None, "it ended"
        assert time.monotonic() < deadline, "no round within a minute"
        time.sleep(0.01)


def test_a_lost_worker_changes_no_byte(tmp_path):
    """A worker is killed from outside; the run goes on as if nothing had happened."""
    ways = ["--rounds", "30", "--engine", "process", "--workers", "2", "--set", "run.evaluate_every=1"]
    mark = uuid.uuid4().hex
    run = start(tmp_path / "hurt", mark, *ways)
    until_trained(run, tmp_path / "hurt")  # before that, a child may be the compiler, which is asked for its version
    os.kill(workers_of(run, mark)[0], signal.SIGKILL)
    assert run.wait(timeout=120) == 0
    assert start(tmp_path / "whole", mark, *ways).wait(timeout=120) == 0
    for name in ("metrics.csv", "clients.csv", "weights.csv", "checkpoint.safetensors"):
        assert (tmp_path / "hurt" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_too_few_open_files_for_the_workers_is_told(tmp_path):
    program = """if True:
        import os, resource, sys
        import torch
        import fedpac.cli
        from fedpac.engines.process import ProcessEngine

        start = ProcessEngine._start

        def starved(self):
            used = max(int(name) for name in os.listdir("/proc/self/fd"))
            if not self.workers:
                resource.setrlimit(resource.RLIMIT_NOFILE, (used + 6, used + 6))
            return start(self)

        ProcessEngine._start = starved
        fedpac.cli.main(sys.argv[1:])
    """
    ways = ["--rounds", "2", "--engine", "process", "--workers", "10", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-c", program, *COMMAND[3:], *ways]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "could not be started: Too many open files; use fewer workers" in " ".join(done.stderr.split())
