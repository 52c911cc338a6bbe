"""(b) FedAvg side by side with Flower's simulation engine and Apple's pfl, on the paper's data and on pfl's."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common import (
    PEERS_PYTHON,
    BenchmarkError,
    Contender,
    Figure,
    Target,
    column,
    interleave,
    machine,
    peer_versions,
    ratio,
    save,
    table,
    targets_table,
)
from benchmarks.workloads import export

OURS, OURS_TORCH = "fedpac, native", "fedpac, torch path"
LAYOUTS = ("nchw", "nhwc")
WORKLOADS = {
    "fashion-mnist": "20 clients x 600 Fashion-MNIST images, all in a round, 5 epochs in batches of 50, paper's CNN",
    "pfl-cifar10": "1,000 users x 50 CIFAR-10 images, 50 in a round, 1 epoch in batches of 10, pfl's two-layer CNN",
}


def run(quick: bool = False) -> list[Target]:
    if not PEERS_PYTHON.exists():
        raise BenchmarkError("the peers' environment is missing: make it with 'make .venv-bench'")
    begun = machine()
    data: dict[str, Any] = {"versions": peer_versions()}
    sections, targets = [], []
    for name, what in WORKLOADS.items():
        workload = f"quick-{name}" if quick else name
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            file = str(export(workload, Path(folder)))
            contenders = [
                Contender(OURS, "benchmarks.ours", workload, "fedavg"),
                Contender(OURS_TORCH, "benchmarks.ours", workload, "fedavg", FEDPAC_NATIVE="0"),
            ]
            for peer in ("flower", "pfl"):
                contenders += [
                    Contender(f"{peer}, {layout}", f"benchmarks.peers_{peer}", file, layout, python=PEERS_PYTHON)
                    for layout in LAYOUTS
                ]
            for contender in contenders:
                stack.enter_context(contender)
            # what a peer starts behind its first round disturbs the second
            answers = interleave(contenders, 3, warm_up=2)
        ours = column(answers, OURS)
        best = {
            peer: min((column(answers, f"{peer}, {layout}") for layout in LAYOUTS), key=lambda s: Figure.of(s).median)
            for peer in ("flower", "pfl")
        }
        rows = [
            [
                n,
                Figure.of(column(answers, n)).text(),
                Figure.of(column(answers, n, "cpu")).text(),
                ratio(column(answers, n), ours).text(),
            ]
            for n in answers
        ]
        head = ["what", "seconds", "CPU seconds", "this / native"]
        sections.append(f"{what}; a round:\n\n{table(head, rows)}")
        if name == "fashion-mnist":
            faster = min(best.values(), key=lambda s: Figure.of(s).median)
            targets.append(Target("faster of Flower and pfl / native, 20 clients", ratio(faster, ours), 2.0))
        else:
            targets.append(Target("pfl / native, pfl's CIFAR-10 workload", ratio(best["pfl"], ours), 1.5))
        data[name] = answers
    versions = ", ".join(f"{k} {v}" for k, v in data["versions"].items())
    markdown = (
        "\n\n".join(sections) + "\n\nFedAvg without evaluation. All use two single-threaded processes and keep data "
        "and model in memory; nchw and nhwc are the memory layouts of images and weights. Peers' network has the pool "
        f"before the activation where that is faster. {versions}.\n\n{targets_table(targets)}"
    )
    save("peers", {**data, "targets": [t.to_json() for t in targets]}, markdown, begun)
    return targets
