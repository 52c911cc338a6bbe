"""What hostile clients do to honest ones, under every aggregation rule: mean accuracy of the honest clients' models.

python -m studies.hostile results/hostile.csv [ROWS]       Fashion-MNIST, 20 clients with 200 samples, 20 rounds, seed 0

backdoor_percent is the share of honest clients' test images that go to the attacker's class once they bear its mark,
those of that class left out.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from studies.rows import fill

import fedpac
from fedpac.config import make_config
from fedpac.errors import TrainingError
from fedpac.hostile import TARGET, with_square
from fedpac.runs.execute import run
from fedpac.runs.read import read_run

ROUNDS = 20
RULES = ("mean", "median", "trimmed-mean", "krum", "clipped")
SOME = ("mean", "trimmed-mean", "clipped")
PERCENT = (10, 30)
PLAN = [  # method, attack, percent of hostile clients, rule
    *[("fedpac", "sign-flip", percent, rule) for percent in (0, *PERCENT) for rule in RULES],
    *[("fedavg", "sign-flip", percent, rule) for percent in (0, *PERCENT) for rule in SOME],
    *[
        ("fedpac", attack, percent, rule)
        for attack in ("scaled", "label-flip", "backdoor")
        for percent in PERCENT
        for rule in SOME
    ],
]


def measure(cell: tuple[str, str, int, str]) -> tuple[object, ...]:
    method, attack, percent, rule = cell
    share, strength = percent / 100, 2.0 if attack == "backdoor" else 10.0
    config = make_config(
        {
            "method": method,
            "data": {"dataset": "fashion-mnist", "clients": 20, "samples": 200, "test_samples": 200},
            "server": {"aggregation": rule, "hostile": max(share, 0.1)},
            "hostile": {"attack": attack if share else "none", "share": share, "strength": strength},
            "run": {"rounds": ROUNDS, "evaluate_every": ROUNDS, "personal_every": 0, "workers": 1},
        }
    )
    honest = sorted(set(range(20)) - config.hostile.who(20, 0))
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(config, Path(folder) / "run")
        except TrainingError:  # the weights of honest clients are no longer finite
            return strength, len(honest), "diverged", ""
        accuracy = 100 * np.asarray(read_run(Path(folder) / "run").accuracy["received"][ROUNDS])[honest].mean()
        opened = f"{100 * doors_opened(Path(folder) / 'run', honest):.2f}" if attack == "backdoor" else ""
    return strength, len(honest), f"{accuracy:.2f}", opened


def doors_opened(folder: Path, honest: list[int]) -> float:
    result = fedpac.load_run(folder)
    shares = []
    for i in honest:
        test = result.scenario.clients[i].test
        keep = test.index[test.labels() != TARGET]
        predicted = torch.from_numpy(result.model(i, "received").predict(with_square(test.pool.x[keep])))
        shares.append(float((predicted == TARGET).float().mean()))
    return float(np.mean(shares))


if __name__ == "__main__":
    cell = ("method", "attack", "hostile_percent", "rule")
    columns = (*cell, "strength", "honest_clients", "received_percent", "backdoor_percent")
    fill(Path(sys.argv[1]), columns, PLAN, measure, int(sys.argv[2]) if len(sys.argv) > 2 else len(PLAN))
