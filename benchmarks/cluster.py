"""(i) What Ray costs over worker processes on the same two cores: a round with long visits, and one with short visits.

python -m benchmarks.cluster ENGINE SAMPLES      the contender: FedPAC rounds of 20 clients, without evaluation
"""

import ctypes
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

from benchmarks.common import Contender, Figure, Target, column, interleave, machine, ratio, save, table
from benchmarks.contender import serve

SAMPLES = (600, 20)  # the paper's clients, and clients whose visits are hardly longer than their messages' way
ENGINES = ("process", "ray")
CLONE_NEWNET = 0x40000000


def run(quick: bool = False) -> list[Target]:
    begun = machine()
    rows, data = [], {}
    for samples in SAMPLES:
        with ExitStack() as stack:
            contenders = [
                stack.enter_context(Contender(engine, "benchmarks.cluster", engine, str(samples))) for engine in ENGINES
            ]
            answers = interleave(contenders, 2 if quick else 7)
        data[str(samples)] = answers
        process, ray = (column(answers, engine) for engine in ENGINES)
        overhead = Figure.of([1000 * (r - p) / 20 for r, p in zip(ray, process, strict=True)])
        rows.append(
            [f"{samples} images", Figure.of(process).text(3), Figure.of(ray).text(3), ratio(ray, process).text(),
             overhead.text(1, " ms")]
        )  # fmt: skip
    sent = data[str(SAMPLES[0])]["ray"][-1]
    head = ["each client has", "worker processes, s", "Ray, s", "Ray / processes", "more for each client"]
    markdown = (
        f"{table(head, rows)}\n\nFedPAC on Fashion-MNIST, 20 clients in every round, no evaluation, two workers or two "
        f"actors on one machine; {sent['megabytes']:.1f} MB of messages in a round."
    )
    save("cluster", {"answers": data}, markdown, begun)
    return []  # nothing was promised


def leave_the_network() -> None:
    """Ray's ports are open to whoever reaches this machine: where it may be, it is in a network of its own."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def child(engine: str, samples: int) -> None:
    if engine == "ray":
        leave_the_network()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from benchmarks.workloads import Workload, federation_parts
    from fedpac.engines import make_engine
    from fedpac.evaluation import Evaluation
    from fedpac.federation import Federation
    from fedpac.methods import make_method

    workload = Workload({"dataset": "fashion-mnist", "samples": samples, "test_samples": 20}, 20)
    scenario, task = federation_parts(workload)
    method = make_method("fedpac")
    with make_engine(engine, task, method, scenario.clients, 2) as running:
        federation = Federation(task, method, running, evaluation=Evaluation(task.rounds))

        def unit() -> dict[str, Any]:
            report = federation.step()
            return {"megabytes": (report.bytes_up + report.bytes_down) / 1e6, "visits": report.client_seconds}

        unit()  # data and actors in their places
        serve(unit)


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2]))
