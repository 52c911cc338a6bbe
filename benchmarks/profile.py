"""Where the time of one client visit goes, by torch.profiler: FedPAC, both networks, native kernels and torch path.

python -m benchmarks.profile DATASET        one such visit, as JSON: {group: milliseconds}
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.common import ROOT, Target, machine, save, table

TURNS = 3
GROUPS = {  # the first that fits; times are an operator's own, without the operators it calls
    "convolution blocks, native": ("fedpac::", "ConvPool", "_Fused", "Block"),
    "convolution": ("conv", "mkldnn"),
    "pool": ("max_pool",),
    "activation": ("leaky_relu", "relu"),
    "linear layers": ("addmm", "mm", "linear"),
    "loss": ("cross_entropy", "softmax", "nll_loss", "square", "mean", "pow"),
    "batches: indexing, shuffling": ("index", "randperm", "gather", "split", "take"),
    "copies, fills": ("copy", "clone", "zero", "fill", "empty", "cat", "contiguous", "to"),
    "SGD and sums": ("add", "sub", "mul", "div", "sum"),
}


def run(quick: bool = False) -> list[Target]:
    begun = machine()
    data: dict[str, Any] = {}
    sections = []
    for dataset in ("fashion-mnist", "cifar10"):
        for kernels in ("1", "0"):
            name = f"{dataset}, {'native' if kernels == '1' else 'torch path'}"
            visits = [_visit(f"quick-{dataset}" if quick else dataset, kernels) for _ in range(1 if quick else TURNS)]
            data[name] = min(visits, key=lambda visit: visit["total"])
    groups = list(dict.fromkeys(group for visit in data.values() for group in visit["groups"]))
    rows = [
        [group, *(_share(visit, group) for visit in data.values())]
        for group in sorted(groups, key=lambda g: -max(v["groups"].get(g, 0) for v in data.values()))
    ]
    rows.append(["all", *(f"{visit['total']:.0f} ms" for visit in data.values())])
    sections.append(table(["milliseconds of one visit", *data], rows))
    markdown = (
        "\n\n".join(sections) + f"\n\nOne FedPAC visit to one client on one thread (features, head, body, features, "
        f"evaluation), the least disturbed of {TURNS}. `Python and dispatch` is the rest: what passes outside of any "
        "operator, and what the profiler itself costs."
    )
    save("profile", data, markdown, begun)
    return []


def _share(visit: dict[str, Any], group: str) -> str:
    spent = visit["groups"].get(group, 0.0)
    return f"{spent:.1f} ({spent / visit['total']:.0%})"


def _visit(workload: str, kernels: str) -> dict[str, Any]:
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.profile", workload],
        cwd=ROOT, env={**os.environ, "FEDPAC_NATIVE": kernels}, check=True, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    visit: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return visit


def show_native_calls() -> None:
    """Native code that is called without an operator is given a name that the profiler can see."""
    from torch.profiler import record_function

    from fedpac import backprop, training
    from fedpac.data import augment
    from fedpac.native import ops

    def shown(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with record_function(name):
                return function(*arguments)

        return call

    for module, function, name in (
        (ops, "_call", "fedpac::conv_pool_act"),
        (training, "sgd_step", "add (SGD)"),
        (backprop, "softmax_gradient", "cross_entropy"),
        (augment, "move", "gather (crops)"),
    ):
        setattr(module, function, shown(getattr(module, function), name))


def child(workload: str) -> None:
    import time

    import torch
    from torch.profiler import ProfilerActivity, profile

    from benchmarks.workloads import WORKLOADS, federation_parts
    from fedpac.engines.site import Job, Site
    from fedpac.methods import make_method
    from fedpac.server import Server

    torch.set_num_threads(1)
    show_native_calls()
    scenario, task = federation_parts(WORKLOADS[workload])
    method = make_method("fedpac")
    site, server = Site(task, method, scenario.clients), Server(task)
    method.setup(server)
    # the first visit has nothing to align with: the second, which is measured, does
    up = site.work(Job("learn-and-score", 0, 1, method.send(server, 0), {})).up
    assert up is not None
    method.merge(server, {0: up})
    job = Job("learn-and-score", 0, 2, method.send(server, 0), {})
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        start = time.perf_counter()
        site.work(job)
        total = 1e3 * (time.perf_counter() - start)
    groups: dict[str, float] = {}
    for event in profiler.key_averages():
        group = next((g for g, parts in GROUPS.items() if any(p in event.key for p in parts)), "other operators")
        groups[group] = groups.get(group, 0.0) + event.self_cpu_time_total / 1e3
    groups["Python and dispatch"] = max(0.0, total - sum(groups.values()))
    print(json.dumps({"total": total, "groups": groups}))


if __name__ == "__main__":
    child(sys.argv[1])
