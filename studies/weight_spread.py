"""How far the combination weights reach beyond a client's own group, from s = 0 % (groups) to 100 % (all alike).

    python studies/weight_spread.py fashion-mnist cifar10 > results/weight-spread.csv

The features are those of the initial network, as in the paper's first round. Beside the exact minimum stands that of
the public code, which lifts the eigenvalues of every client's matrix to 0.01: with small features that makes it nearly
a multiple of the identity, whose minimum is the plain average of all heads.
"""

import sys

import numpy as np
import torch
from numpy.typing import NDArray

from fedpac.client import Client
from fedpac.collaboration.simplex_qp import solve_simplex_qps
from fedpac.collaboration.statistics import FeatureStatistics, feature_statistics
from fedpac.collaboration.weights import combination_weights
from fedpac.config import make_config
from fedpac.data.scenario import build
from fedpac.runs.run import make_task, provenance
from fedpac.training import features

FLOOR = 0.01  # of the eigenvalues, in the public code


def first_round_statistics(dataset: str, s: float) -> tuple[list[FeatureStatistics], NDArray[np.int64]]:
    config = make_config({"data": {"dataset": dataset, "s": s}})
    scenario = build(config.data, config.run.seed)
    task = make_task(config, scenario)
    clients = [Client(i, data, task, task.model, 1, {}) for i, data in enumerate(scenario.clients)]
    statistics = [feature_statistics(features(c, task.initial), c.train_set[1], c.classes) for c in clients]
    return statistics, np.array([c.data.group for c in clients])


def floored_weights(statistics: list[FeatureStatistics]) -> NDArray[np.float64]:
    h = torch.stack([s.h.flatten() for s in statistics]).numpy()
    v = np.diag([s.V / s.n for s in statistics])
    rows = []
    for own in h:
        values, vectors = np.linalg.eigh((own - h) @ (own - h).T + v)
        lifted = (vectors * np.maximum(values, FLOOR)) @ vectors.T
        rows.append(solve_simplex_qps(lifted, np.zeros((1, len(h))))[0])
    return np.stack(rows)


def main() -> None:
    about = provenance()
    print(f"# seed 0; {about['command']}; commit {about['commit']}; torch {about['versions']['torch']}")
    print("dataset,s,solver,outside_group_percent,partners")
    for dataset in sys.argv[1:]:
        for s in (0, 20, 50, 80, 90, 95, 100):
            statistics, group = first_round_statistics(dataset, s)
            outside = group[:, None] != group[None, :]
            solved = {"exact": combination_weights(statistics).numpy(), "eigenvalue floor": floored_weights(statistics)}
            for name, alpha in solved.items():
                share = 100 * (alpha * outside).sum() / len(alpha)
                partners = (alpha > 1e-3).sum() / len(alpha)
                print(f"{dataset},{s},{name},{share:.1f},{partners:.1f}")


if __name__ == "__main__":
    main()
