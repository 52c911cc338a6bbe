"""(e) Thirty clients take part, of a hundred, a thousand, ten thousand: a round must cost the same, and little memory.

python -m benchmarks.scale CLIENTS        the contender: FedPAC rounds without evaluation
"""

import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.common import (
    Contender,
    Figure,
    Target,
    column,
    interleave,
    machine,
    process_tree,
    ratio,
    save,
    table,
    targets_table,
)
from benchmarks.contender import serve

CLIENTS = (100, 1_000, 10_000)
LIMIT = 4.0  # GB for ten thousand clients


def run(quick: bool = False) -> list[Target]:
    begun = machine()
    sizes = CLIENTS[:2] if quick else CLIENTS
    names = {n: f"{n:,} clients" for n in sizes}
    with ExitStack() as stack:
        contenders = [
            stack.enter_context(Contender(names[n], "benchmarks.scale", str(n))) for n in sizes
        ]  # one after the other: dealing the data is not what is measured
        answers = interleave(contenders, 2 if quick else 7)
        peaks = {c.name: peak_gigabytes(c.process.pid) for c in contenders}
    first = column(answers, names[sizes[0]])
    rows = [
        [name, Figure.of(column(answers, name)).text(3), Figure.of(column(answers, name, "cpu")).text(),
         ratio(column(answers, name), first).text(), f"{peaks[name]:.2f} GB"]
        for name in names.values()
    ]  # fmt: skip
    largest = names[sizes[-1]]
    memory = Figure.of([peaks[largest]])
    growth = ratio(column(answers, largest), first)
    targets = [
        Target(f"a round of {largest} / a round of {names[sizes[0]]}", growth, 1.15, at_least=False),
        Target(f"{largest}, GB in all", memory, LIMIT, at_least=False),
    ]
    head = ["federation", "seconds per round", "CPU seconds", "this / 100 clients", "peak memory"]
    markdown = (
        f"{table(head, rows)}\n\nFedPAC on Fashion-MNIST, 50 images per client, 30 clients in every round, no "
        "evaluation, two workers. Peak memory is the sum of the peak resident sets of the parent and both workers; "
        f"what they share is counted three times, so it is an upper bound.\n\n{targets_table(targets)}"
    )
    data: dict[str, Any] = {"answers": answers, "peak_gigabytes": peaks}
    save("scale", {**data, "targets": [t.to_json() for t in targets]}, markdown, begun)
    return targets


def peak_gigabytes(pid: int) -> float:
    """The sum over a process and its descendants of the most memory each has held."""
    total = 0
    for member in process_tree(pid):
        with suppress(OSError):
            for line in Path(f"/proc/{member}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    total += int(line.split()[1])
    return total / 1e6


def child(clients: int) -> None:
    from benchmarks.workloads import federation_parts, participation, scale_workload
    from fedpac.engines import make_engine
    from fedpac.evaluation import Evaluation
    from fedpac.federation import Federation
    from fedpac.methods import make_method
    from fedpac.sampling import Uniform

    workload = scale_workload(clients)
    scenario, task = federation_parts(workload)
    method = make_method("fedpac")
    with make_engine("process", task, method, scenario.clients, 2) as engine:
        federation = Federation(
            task, method, engine, sampler=Uniform(participation(workload, scenario)), evaluation=Evaluation(task.rounds)
        )

        def unit() -> dict[str, Any]:
            return {"clients": len(federation.step().chosen)}

        serve(unit)


if __name__ == "__main__":
    child(int(sys.argv[1]))
