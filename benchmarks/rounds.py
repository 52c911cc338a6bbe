"""(a) Whole FedPAC rounds in the paper's setting: native kernels, plain torch, a plain program, the machine's bound."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks import flops
from benchmarks.common import Contender, Figure, Target, column, interleave, machine, ratio, save, table, targets_table
from benchmarks.networks import network
from benchmarks.workloads import WORKLOADS, export, federation_parts
from fedpac.engines import SerialEngine
from fedpac.federation import Federation
from fedpac.methods import make_method

NATIVE, TORCH, PLAIN, BOUND = "native", "torch path", "plain program", "sgemm"
DATASETS = ("fashion-mnist", "cifar10")


def run(quick: bool = False) -> list[Target]:
    begun = machine()
    apart = difference_to_reference()
    data: dict[str, Any] = {"difference_to_reference": apart}
    rows, checks, spent, targets = [], [], [], []
    for dataset in DATASETS:
        workload = f"quick-{dataset}" if quick else dataset
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            file = export(workload, Path(folder))
            ours = ["benchmarks.ours", workload, "fedpac", "--evaluate"]
            contenders = [
                Contender(NATIVE, *ours),
                Contender(TORCH, *ours, FEDPAC_NATIVE="0"),
                Contender(PLAIN, "benchmarks.reference", str(file)),
                Contender(BOUND, "benchmarks.sgemm", "0.3" if quick else "1.5"),
            ]
            for contender in contenders:
                stack.enter_context(contender)
            answers = interleave(contenders, 3)
            operations = round_operations(file)
        rates = [a["gflops"] for a in answers[BOUND]]
        time = {name: column(answers, name) for name in (NATIVE, TORCH, PLAIN)}
        bounds = {kind: [gflop / rate for rate in rates] for kind, gflop in operations.items()}
        share = ratio(bounds["pool-sparse"], time[NATIVE])
        for name in (NATIVE, TORCH, PLAIN):
            rows.append([
                dataset, name, Figure.of(time[name]).text(),
                Figure.of(column(answers, name, "cpu")).text(), ratio(time[PLAIN], time[name]).text(),
                ratio(time[TORCH], time[name]).text(),
                ratio(bounds["dense"], time[name]).text(), ratio(bounds["pool-sparse"], time[name]).text(),
            ])  # fmt: skip
            last = answers[name][-1]
            checks.append([dataset, name, f"{last['received']:.4f}", f"{last['personal']:.4f}"])
        rows.append([
            dataset, f"sgemm bound, {Figure.of(rates).text(0)} GFLOP/s", *_bound_cells(bounds, operations),
        ])  # fmt: skip
        cpu = {name: column(answers, name, "cpu") for name in (NATIVE, TORCH, PLAIN)}
        least = [operations["pool-sparse"] / a["gflops_per_core"] for a in answers[BOUND]]
        spent.append([
            dataset, ratio(cpu[TORCH], cpu[NATIVE]).text(), ratio(cpu[PLAIN], cpu[TORCH]).text(),
            ratio(least, cpu[NATIVE]).text(),
        ])  # fmt: skip
        targets += [
            Target(f"{dataset}: torch path / native", ratio(time[TORCH], time[NATIVE]), 2.2),
            Target(f"{dataset}: share of the pool-sparse bound", share, 0.7),
            Target(f"{dataset}: plain program / torch path", ratio(time[PLAIN], time[TORCH]), 2.0),
        ]
        data[dataset] = {"answers": answers, "gflop": operations}
    head = [
        "round of", "what", "seconds", "CPU seconds", "plain program / this", "torch path / this", "dense bound / this",
        "pool-sparse bound / this",
    ]  # fmt: skip
    by_cpu = table(
        ["round of", "torch path / native", "plain program / torch path", "pool-sparse bound / native"], spent
    )
    check = table(["round of", "what", "received", "personal"], checks)
    markdown = (
        f"{table(head, rows)}\n\nOne FedPAC round: {2 if quick else 20} clients, 600 images each, 5 epochs, both "
        "evaluations of all. `native` and `torch path` are `fedpac` with two worker processes, with and without "
        "its C++ kernels; the plain program uses torch's default threads.\n\n"
        "The same in CPU seconds, which other load disturbs less (but not the "
        f"plain program's: its threads spin while they wait for each other):\n\n{by_cpu}\n\n"
        "Mean accuracy after the fourth round, from the same start "
        f"(other random numbers, so close and not equal):\n\n{check}\n\nWith whole-batch gradients nothing is "
        f"random: after two rounds the weights of `fedpac` and of the plain program differ by at most {apart:.1e}.\n\n"
        f"{targets_table(targets)}"
    )
    save("rounds", {**data, "targets": [t.to_json() for t in targets]}, markdown, begun)
    return targets


def difference_to_reference(rounds: int = 2) -> float:
    """The largest difference between our weights and the plain program's, where neither draws random batches."""
    from benchmarks.reference import Reference

    scenario, task = federation_parts(WORKLOADS["check"])
    method = make_method("fedpac")
    with tempfile.TemporaryDirectory() as folder:
        plain = Reference(torch.load(export("check", Path(folder))))
    ours = Federation(task, method, SerialEngine(task, method, scenario.clients))
    for _ in range(rounds):
        ours.step()
        plain.round()
    body = {f"body.{name}": value for name, value in plain.body.items()}
    differences = [(ours.server.weights("w")[name] - value).abs().max() for name, value in body.items()]
    for i, head in enumerate(plain.heads):
        own = ours.server.weights(f"head.{i}")
        differences += [(own[f"head.{name}"] - value).abs().max() for name, value in head.items()]
    return float(torch.stack(differences).max())


def _bound_cells(bounds: dict[str, list[float]], operations: dict[str, float]) -> list[str]:
    dense, sparse = (
        f"{Figure.of(bounds[kind]).text()} s for {operations[kind]:.0f} GFLOP" for kind in ("dense", "pool-sparse")
    )
    return ["", "", "", "", dense, sparse]


def round_operations(path: Path) -> dict[str, float]:
    """GFLOP of a FedPAC round on the workload in this file."""
    file = torch.load(path)
    clients, train, *shape = file["x"].shape
    net = network(file["network"], shape[0], file["classes"])
    size = (tuple(shape), clients, train, file["x_test"].shape[1], file["recipe"]["epochs"])
    return {
        kind: flops.fedpac_round(net, *size, sparse=kind == "pool-sparse") / 1e9 for kind in ("dense", "pool-sparse")
    }
