"""(c) FLUTE's CPU workload: logistic regression, 1,000 clients, 10 in a round, batches of 10, 1 epoch, 100 rounds.

Each turn is a new process. Its seconds are all that pass from its start to its end, imports, worker start-up and
shut-down included, except the reading and dealing of the data.

    python -m benchmarks.flute {auto,process,serial,torch,closed}        one such run; prints its seconds
"""

import gc
import os
import subprocess
import sys
import time
from typing import Any

from benchmarks.common import (
    ROOT,
    Figure,
    Target,
    column,
    cpu_seconds,
    machine,
    progress,
    ratio,
    save,
    table,
    targets_table,
)

ROUNDS = 100
WHAT = {
    "auto": "fedpac, as it comes",
    "process": "fedpac, two worker processes",
    "serial": "fedpac, in one process",
    "torch": "plain torch loop: nn.Linear, autograd, optim.SGD",
    "closed": "plain torch loop with the gradient written out",
}


def run(quick: bool = False) -> list[Target]:
    begun = machine()
    answers: dict[str, list[dict[str, Any]]] = {kind: [] for kind in WHAT}
    for _ in range(1 if quick else 5):
        for kind in WHAT:
            answer = once(kind, 5 if quick else ROUNDS)
            progress(f"  {kind:10s} {answer['seconds']:8.3f} s, accuracy {answer['accuracy']:.3f}")
            answers[kind].append(answer)
    ours = column(answers, "auto")
    rows = [
        [what, *(Figure.of(column(answers, kind, c)).text() for c in ("seconds", "rounds", "cpu")),
         ratio(column(answers, kind), ours).text(), f"{answers[kind][-1]['accuracy']:.3f}"]
        for kind, what in WHAT.items()
    ]  # fmt: skip
    targets = [Target("100 rounds of FLUTE's workload, seconds in all", Figure.of(ours), 3.0, at_least=False)]
    head = ["what", "seconds in all", "seconds of the rounds", "CPU seconds", "this / fedpac", "test accuracy"]
    markdown = (
        f"{table(head, rows)}\n\nLogistic regression on Fashion-MNIST (784 inputs, 10 classes), 1,000 clients with 60 "
        f"images each, 10 in a round, batches of 10, 1 epoch, {ROUNDS} rounds. Seconds in all are those of a whole "
        "process, imports and worker start included, without the reading and dealing of the data; the rounds alone "
        f"stand beside them.\n\n{targets_table(targets)}"
    )
    save("flute", {"answers": answers, "targets": [t.to_json() for t in targets]}, markdown, begun)
    return targets


def once(kind: str, rounds: int) -> dict[str, Any]:
    began = time.monotonic()
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.flute", kind, str(rounds)],
        cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    total = time.monotonic() - began
    loading, of_rounds, accuracy, cpu = map(float, found.stdout.split())
    return {"seconds": total - loading, "rounds": of_rounds, "accuracy": accuracy, "loading": loading, "cpu": cpu}


# --- the child -----------------------------------------------------------------------------------------------------


def child(kind: str, rounds: int) -> None:
    import torch

    from benchmarks.workloads import WORKLOADS, federation_parts
    from fedpac.engines import ENGINES

    gc.freeze()  # as the fedpac command does: nobody looks for garbage among what was imported
    workload = WORKLOADS["flute"]
    start, cpu_before = time.monotonic(), time.process_time()
    scenario, task = federation_parts(workload)
    test = scenario.clients[0].test.pool
    loading, cpu_loading = time.monotonic() - start, time.process_time() - cpu_before
    if kind == "closed":
        torch.set_num_threads(1)
    start = time.monotonic()
    w, cpu = (federated if kind in ENGINES else by_hand)(kind, scenario, task, rounds)
    of_rounds = time.monotonic() - start
    assert test.mean is not None
    assert test.std is not None
    x = ((test.x.float() / 255 - test.mean[0]) / test.std[0]).flatten(1)
    accuracy = ((x @ w["head.weight"].T + w["head.bias"]).argmax(1) == test.y).double().mean()
    print(loading, of_rounds, float(accuracy), cpu - cpu_loading)


def federated(kind: str, scenario: Any, task: Any, rounds: int) -> tuple[Any, float]:
    from benchmarks.workloads import WORKLOADS, participation
    from fedpac.engines import make_engine
    from fedpac.evaluation import Evaluation
    from fedpac.federation import Federation
    from fedpac.methods import make_method
    from fedpac.sampling import Uniform

    method = make_method("fedavg")
    with make_engine(kind, task, method, scenario.clients, 2) as engine:
        federation = Federation(
            task, method, engine,
            sampler=Uniform(participation(WORKLOADS["flute"], scenario)), evaluation=Evaluation(task.rounds),
        )  # fmt: skip
        for _ in range(rounds):
            federation.step()
        return federation.server.weights("w"), cpu_seconds(os.getpid())


def by_hand(kind: str, scenario: Any, task: Any, rounds: int) -> tuple[Any, float]:
    """What a user would write for this one workload: no engine, no messages, no streams."""
    import torch
    import torch.nn.functional as F

    recipe, chosen = task.recipe, 10
    w, b = task.initial["head.weight"].clone(), task.initial["head.bias"].clone()
    for _ in range(rounds):
        sum_w, sum_b = torch.zeros_like(w), torch.zeros_like(b)
        for i in torch.randperm(len(scenario.clients))[:chosen].tolist():
            x, y = scenario.clients[i].train.tensors()
            batches = torch.randperm(len(y)).split(recipe.batch)
            x = x.flatten(1)
            if kind == "closed":
                own_w, own_b = w.clone(), b.clone()
                for index in batches:
                    error = torch.addmm(own_b, x[index], own_w.T).softmax(1)
                    error[torch.arange(len(index)), y[index]] -= 1
                    error *= recipe.lr / len(index)
                    own_w.addmm_(error.T, x[index], alpha=-1)
                    own_b -= error.sum(0)
            else:
                layer = torch.nn.Linear(*reversed(w.shape))
                layer.load_state_dict({"weight": w, "bias": b})
                optimizer = torch.optim.SGD(layer.parameters(), recipe.lr)
                for index in batches:
                    optimizer.zero_grad()
                    F.cross_entropy(layer(x[index]), y[index]).backward()
                    optimizer.step()
                own_w, own_b = layer.weight.detach(), layer.bias.detach()
            sum_w += own_w
            sum_b += own_b
        w, b = sum_w / chosen, sum_b / chosen
    return {"head.weight": w, "head.bias": b}, cpu_seconds(os.getpid())


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2]))
