"""What the warm-up of FedPAC+'s momentum is for: the first rounds with 100 samples a client, with and without it.

    python -m studies.first_rounds results/first-rounds.csv [MOST]

Fashion-MNIST, 20 clients with 100 samples each, twelve rounds, seeds 10 to 12, which no table reports: the accuracy of
the received models, the mean over clients. Started again, it goes on with the rows that are missing.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from studies.rows import fill

from fedpac.config import make_config
from fedpac.runs.execute import advance
from fedpac.runs.read import read_run

SEEDS, ROUNDS = (10, 11, 12), 12

TRIALS: dict[str, dict[str, Any]] = {
    "FedPAC": {"name": "fedpac"},
    "FedPAC+": {"name": "fedpac-plus"},
    "without a warm-up": {"name": "fedpac-plus", "warmup": 0},
    "without momentum": {"name": "fedpac-plus", "momentum": 0.0},
    "without a warm-up, without the higher rate": {"name": "fedpac-plus", "warmup": 0, "rate": 1.0},
    "without a warm-up, without control variates": {"name": "fedpac-plus", "warmup": 0, "control": False},
}


def received(cell: tuple[str, int]) -> list[float]:
    trial, seed = cell
    config = {
        "method": TRIALS[trial.strip('"')],
        "data": {"dataset": "fashion-mnist", "clients": 20, "samples": 100},
        "run": {"rounds": ROUNDS, "seed": seed, "evaluate_every": 1, "engine": "serial"},
    }
    with tempfile.TemporaryDirectory() as folder:
        advance(make_config(config), Path(folder) / "run")
        scores = read_run(Path(folder) / "run").accuracy["received"]
    return [float(100 * np.mean(scores[t])) for t in range(1, ROUNDS + 1)]


if __name__ == "__main__":
    cells = [(f'"{trial}"', seed) for trial in TRIALS for seed in SEEDS]
    most = int(sys.argv[2]) if len(sys.argv) > 2 else len(cells)
    columns = ("trial", "seed", *(f"round {t}" for t in range(1, ROUNDS + 1)))
    fill(Path(sys.argv[1]), columns, cells, received, most, "seeds 10 to 12")
