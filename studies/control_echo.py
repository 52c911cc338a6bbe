"""Why does training with FedPAC+ diverge on CIFAR-10 with 100 samples a client? The lengths of its control variates.

    python -m studies.control_echo > results/control-echo.csv

CIFAR-10, 20 clients with 100 samples each, ten steps in a round, seed 10, which no table reports: after every round the
length of h, and the mean length of the clients' h_i, with control variates at full strength, and at half.
"""

import torch
from torch import Tensor

from fedpac.config import make_config
from fedpac.data.scenario import build
from fedpac.engines import SerialEngine
from fedpac.errors import RunError, TrainingError
from fedpac.message import Weights
from fedpac.provenance import provenance
from fedpac.runs.execute import make_federation, make_task

SEED, ROUNDS = 10, 60


def length(weights: Weights) -> float:
    return float(torch.cat([tensor.reshape(-1) for tensor in weights.values()]).norm())


def lengths(full_control: int) -> list[tuple[int, float, float]]:
    """(round, of h, the mean of h_i) until training diverges."""
    config = make_config({
        "method": {"name": "fedpac-plus", "full_control": full_control, "growth": 1.0, "warmup": 0, "falls_from": 0},
        "data": {"dataset": "cifar10", "clients": 20, "samples": 100, "test_samples": 300},
        "run": {"seed": SEED, "rounds": 2 * ROUNDS, "evaluate_every": 2 * ROUNDS},
    })  # fmt: skip
    scenario = build(config.data, SEED)
    task, method = make_task(config, scenario), config.make_method()
    federation = make_federation(config, task, method, SerialEngine(task, method, scenario.clients))
    found = []
    try:
        for report in federation.rounds():
            own = [state["control"] for state in federation.engine.snapshot().values()]
            norms = [float(h.norm()) for h in own if isinstance(h, Tensor)]
            found.append((report.round, length(federation.server.weights("control")), sum(norms) / len(norms)))
            if report.round == ROUNDS:
                break
    except (TrainingError, RunError) as error:
        if "diverged" not in str(error):
            raise
    return found


if __name__ == "__main__":
    origin = provenance()
    print(f"# {origin['command']}; commit {origin['commit']}; seed {SEED}; torch {origin['versions']['torch']}")
    print("strength,round,length of h,mean length of h_i")
    for strength, full_control in (("1", 1), ("0.5", 20)):
        for t, shared, own in lengths(full_control):
            print(f"{strength},{t},{shared:.3f},{own:.3f}", flush=True)
