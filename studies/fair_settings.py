"""Which learning rate, and is server momentum worth having? The same three trials for every method of the fair table.

    python -m studies.fair_settings results/fair-settings.csv runs/fair [METHOD ...]

Each trial: Fashion-MNIST, 20 clients, 30 rounds, a fifth of every client's training data held out, seed 10, which no
table reports. A row has the accuracy on those held-out data of the model that the method reports, the mean over
clients. All else is as the method's authors have it. Started again, it goes on with the rows that are missing.
"""

import sys
from pathlib import Path
from typing import Any

from studies.rows import fill

from fedpac.config import make_config
from fedpac.errors import TrainingError
from fedpac.methods import find_method
from fedpac.runs.execute import advance
from fedpac.runs.folder import RunStore

SEED, ROUNDS, RATE = 10, 30, 0.01
METHODS = (
    "fedavg-ft", "ditto", "pfedfda", "fedala", "feddbe", "fedccfa", "pfedgraph", "fedamp", "fedas", "fedcp",
)  # fmt: skip
MOMENTUM = {"optimizer": "momentum", "momentum": 0.5}


def trials(method: str) -> dict[str, dict[str, Any]]:
    """A method that averages nothing has no use for server momentum: it gets a third rate instead."""
    averages = find_method(method).averages
    third = {"training": {"lr": (2 if averages else 4) * RATE}, "server": MOMENTUM if averages else {}}
    return {
        "rate 1": {"training": {"lr": RATE}},
        "rate 2": {"training": {"lr": 2 * RATE}},
        "rate 2 and momentum" if averages else "rate 4": third,
    }


def validated(folder: Path, method: str, settings: dict[str, Any]) -> float:
    """NaN where training diverges, which counts against the budget like any other trial."""
    run = {"seed": SEED, "rounds": ROUNDS, "evaluate_every": ROUNDS, "engine": "serial"}
    data = {"dataset": "fashion-mnist", "clients": 20, "validation_share": 0.2}
    try:
        advance(make_config({**settings, "method": {"name": method}, "data": data, "run": run}), folder)
    except TrainingError:
        return float("nan")
    summary = RunStore(folder).read_json("summary.json")
    return 100 * float(summary[summary["reported"]]["selected"]["value"])


if __name__ == "__main__":
    table, runs = Path(sys.argv[1]), Path(sys.argv[2])
    wanted = [(method, trial) for method in sys.argv[3:] or METHODS for trial in trials(method)]

    def measure(cell: tuple[str, str]) -> tuple[float]:
        method, trial = cell
        return (validated(runs / f"{method}-{trial.replace(' ', '-')}", method, trials(method)[trial]),)

    fill(table, ("method", "trial", "validation"), wanted, measure, len(wanted), f"seed {SEED}")
