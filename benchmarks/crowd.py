"""(f) A hundred thousand clients, twenty in a round, everybody's model scored once at the end.

The whole command as a user types it: `fedpac run` on digits with a linear model, 20 samples per client, 20 rounds.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Figure, Target, machine, process_tree, save, table, targets_table

CLIENTS, CHOSEN, ROUNDS = 100_000, 20, 20
SECONDS, GIGABYTES = 180.0, 4.0
METHODS = ("fedavg", "fedpac", "ditto")


def run(quick: bool = False) -> list[Target]:
    begun = machine()
    clients = CLIENTS // 100 if quick else CLIENTS
    answers: dict[str, Any] = {method: command(method, clients) for method in METHODS}
    rows = [[m, f"{a['seconds']:.0f}", f"{a['gigabytes']:.2f}", str(a["scored"])] for m, a in answers.items()]
    targets = []
    for method, answer in answers.items():
        what = f"{clients:,} clients, {method}"
        targets.append(Target(f"{what}, seconds in all", Figure.of([answer["seconds"]]), SECONDS, at_least=False))
        targets.append(Target(f"{what}, GB in all", Figure.of([answer["gigabytes"]]), GIGABYTES, at_least=False))
    markdown = (
        f"{table(['method', 'seconds', 'peak GB', 'scores'], rows)}\n\n`fedpac run` from start to end on {clients:,} "
        f"clients of 20 digits each, {CHOSEN} of them in each of {ROUNDS} rounds, a linear model; both accuracies of "
        "every client are measured once, in the last round, which means that every client is trained once. Peak memory "
        f"is the largest sum of the resident sets of all processes that was seen.\n\n{targets_table(targets)}"
    )
    save("crowd", {"answers": answers, "targets": [t.to_json() for t in targets]}, markdown, begun)
    return targets


def command(method: str, clients: int) -> dict[str, float]:
    settings = {
        "model": "logistic", "data.samples": 20, "data.test_samples": 10, "run.evaluate_every": ROUNDS,
        "run.everybody_last": "false",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = [
            sys.executable, "-m", "fedpac", "run", "--method", method, "--dataset", "digits",
            "--clients", clients, "--rounds", ROUNDS, "--participation", CHOSEN / clients, "--out", out,
        ]  # fmt: skip
        words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        start = time.perf_counter()
        process = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL)
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, resident_gigabytes(process.pid))
            time.sleep(0.1)
        seconds = time.perf_counter() - start
        if process.returncode:
            raise SystemExit(f"{method}: exit code {process.returncode}")
        scored = len((out / "metrics.csv").read_text().splitlines()) - 1
    return {"seconds": seconds, "gigabytes": peak, "scored": scored}


def resident_gigabytes(pid: int) -> float:
    """Of a process and its descendants; pages that they share are counted once, as far as the system tells."""
    total = 0
    for member in process_tree(pid):
        try:
            fields = dict(
                line.split(":", 1) for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()[1:]
            )
            total += int(fields["Pss"].split()[0])
        except (OSError, KeyError, ValueError):
            continue
    return total / 1e6
