"""What kills cost: 20 sites on this machine over Flower, 20 rounds, a site killed and started again every other round.

python -m studies.federation_kills results/federation-kills.csv [ROWS]        FedPAC on digits

Every site is a process with TLS and a key of its own, killed with SIGKILL in mid-round. The accuracy is that of the
models which the 20 sites end up with, each on its own test samples. Without kills, Flower gives the process engine's
numbers, so the noise is that of the process engine over five seeds; Flower has three, with kills and without.
"""

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from studies.rows import fill

from fedpac.bundles import load_model
from fedpac.callbacks import Callbacks
from fedpac.config import Config, make_config
from fedpac.data.scenario import build
from fedpac.deploy.certs import make_certificates
from fedpac.deploy.conductor import Plan
from fedpac.deploy.desk import folder_of
from fedpac.deploy.serving import Service
from fedpac.deploy.superlink import end, flower_environment, free_port, start
from fedpac.deploy.trial import join_command
from fedpac.rounds import RoundReport
from fedpac.runs.execute import run
from fedpac.training import evaluate

SITES = ROUNDS = 20
SEEDS = range(5)
DEADLINE = 20.0
INTO_THE_ROUND = 0.5  # seconds
COLUMNS = ("run", "seed", "kills", "rounds_with_someone_missing", "answers_missing", "seconds", "final_percent")


def config_of(seed: int, engine: str) -> Config:
    run = {"rounds": ROUNDS, "seed": seed, "engine": engine, "deadline": DEADLINE, "min_replies": SITES // 2}
    return make_config({"method": "fedpac", "data": {"dataset": "digits", "clients": SITES}, "run": run})


class Sites:
    """The sites' processes, one of which is killed in every other round and started again at once."""

    def __init__(self, command_of: Callable[[str], list[str]], names: list[str], folder: Path, seed: int) -> None:
        self.command_of, self.folder = command_of, folder
        self.random = random.Random(seed)
        self.killed = 0
        self.killer = ThreadPoolExecutor(1)  # one thread that stays: a site ends with the thread that started it
        self.running = {name: self.start(name) for name in names}

    def start(self, name: str) -> "subprocess.Popen[bytes]":
        return start(self.command_of(name), flower_environment(self.folder / "flwr"), self.folder / f"{name}.log")

    def see(self, report: RoundReport) -> None:
        if report.round % 2:
            self.killer.submit(self.kill)

    def kill(self) -> None:
        time.sleep(INTO_THE_ROUND)
        name = self.random.choice(list(self.running))
        self.running[name].kill()
        self.running[name].wait()
        self.killed += 1
        self.running[name] = self.start(name)

    def end(self) -> None:
        self.killer.shutdown()
        for process in self.running.values():
            end(process)


def here(seed: int) -> tuple[object, ...]:
    """Without kills, on the process engine."""
    reports: list[RoundReport] = []
    with tempfile.TemporaryDirectory() as scratch:
        run(config_of(seed, "process"), Path(scratch) / "run", callbacks=[reports.append])
    final = reports[-1].accuracies("received")
    return 0, 0, 0, sum(report.seconds for report in reports), 100 * statistics.mean(final)


def over_flower(seed: int, kills: bool) -> tuple[object, ...]:
    config, names = config_of(seed, "flower"), [f"client-{i}" for i in range(SITES)]
    reports: list[RoundReport] = []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        certificates, stated, out = folder / "certs", folder / "data.toml", folder / "run"
        make_certificates(certificates, ["localhost"], names)
        stated.write_text(config.to_toml())
        service = stack.enter_context(Service(folder / "server", "127.0.0.1", free_port(), certificates, names))

        def command_of(name: str) -> list[str]:
            joining = join_command(service.gate.address, name, certificates, folder / "state" / name)
            return [*joining, "--simulated", str(stated), "--stay"]

        sites = Sites(command_of, names, folder, seed)
        stack.callback(sites.end)
        plan = Plan(config, out, patience=600.0)
        begun: list[float] = []

        def watch(report: RoundReport) -> None:
            begun.append(time.monotonic())
            reports.append(report)
            tell(f"round {report.round}: {report.seconds:.1f} s, missing: {sorted(missing(report))}")

        service.carry_out(plan, tell, Callbacks([watch, *([sites.see] if kills else [])]))
        service.carry_out(plan, tell)  # who was away at the end gets a model now
        federation = (out / ".federation").read_text()
        tests = [client.test.tensors() for client in build(config.data, seed).clients]
        models = [load_model(folder_of(folder / "state" / name, federation) / "model").module for name in names]
        final = [evaluate(model, *test)[0] for model, test in zip(models, tests, strict=True)]
    lacking = [len(missing(report)) for report in reports]
    seconds = begun[-1] - begun[0] + reports[0].seconds
    return sites.killed, sum(map(bool, lacking)), sum(lacking), seconds, 100 * statistics.mean(final)


def missing(report: RoundReport) -> set[int]:
    """Who was not there, or did not answer."""
    return set(range(SITES)) - set(report.chosen) | {failure.client for failure in report.failed}


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure(cell: tuple[str, int]) -> tuple[object, ...]:
    name, seed = cell
    return here(seed) if name == "process engine" else over_flower(seed, kills=name == "Flower with kills")


def main() -> None:
    cells = [("process engine", seed) for seed in SEEDS]
    cells += [(name, seed) for seed in SEEDS[:3] for name in ("Flower", "Flower with kills")]
    most = int(sys.argv[2]) if len(sys.argv) > 2 else len(cells)
    fill(Path(sys.argv[1]), COLUMNS, cells, measure, most, f"seeds {SEEDS.start} to {SEEDS.stop - 1}")


if __name__ == "__main__":
    main()
