"""How far the combination weights reach beyond a client's own group, from s = 0 % (groups) to 100 % (all alike).

    python studies/weight_spread.py fashion-mnist cifar10 > results/weight-spread.csv

The features are those of the initial network, as in the paper's first round. Beside our solver's stands what the public
code does: single precision, and cvxpy with OSQP for each client. Where a client's matrix is not positive semidefinite,
that code drops its eigenvalues below 0.01; `indefinite` counts such clients.
"""

import sys

import cvxpy
import numpy as np
import torch
from numpy.typing import NDArray

from fedpac.collaboration.statistics import FeatureStatistics, feature_statistics
from fedpac.collaboration.weights import combination_weights
from fedpac.config import make_config
from fedpac.data.scenario import build
from fedpac.engines.site import Site
from fedpac.provenance import provenance
from fedpac.runs.execute import make_task
from fedpac.training import features

CUTOFF = 1e-3  # smaller weights are set to zero, in both


def first_round_statistics(dataset: str, s: float) -> tuple[list[FeatureStatistics], NDArray[np.int64]]:
    config = make_config({"data": {"dataset": dataset, "s": s}})
    scenario = build(config.data, config.run.seed)
    task = make_task(config, scenario)
    site = Site(task, config.make_method(), scenario.clients)
    clients = [site.open(i, 1, {}) for i in range(len(scenario.clients))]
    statistics = [feature_statistics(features(c, task.initial), c.train_set[1], c.classes) for c in clients]
    return statistics, np.array([c.data.group for c in clients])


def as_in_the_public_code(statistics: list[FeatureStatistics]) -> tuple[NDArray[np.float64], int]:
    """The weights, and how many of the clients' matrices are not positive semidefinite."""
    h = torch.stack([s.h.flatten() for s in statistics]).float().numpy()
    v = np.diag([s.V / s.n for s in statistics]).astype(np.float32)
    rows, indefinite = [], 0
    for own in h:
        matrix = (own - h) @ (own - h).T + v
        indefinite += not np.all(np.linalg.eigvals(matrix).real >= 0)
        alpha = cvxpy.Variable(len(h))
        loss = cvxpy.quad_form(alpha, cvxpy.psd_wrap(matrix.astype(float)))
        cvxpy.Problem(cvxpy.Minimize(loss), [cvxpy.sum(alpha) == 1, alpha >= 0]).solve(solver=cvxpy.OSQP)
        solved = np.asarray(alpha.value)
        kept = np.where(solved > CUTOFF, solved, 0)
        rows.append(kept / kept.sum())
    return np.stack(rows), indefinite


def main() -> None:
    about = provenance()
    print(f"# seed 0; {about['command']}; commit {about['commit']}; torch {about['versions']['torch']}")
    print("dataset,s,solver,outside_group_percent,partners,largest_difference,indefinite")
    for dataset in sys.argv[1:]:
        for s in (0, 20, 50, 80, 90, 95, 100):
            statistics, group = first_round_statistics(dataset, s)
            outside = group[:, None] != group[None, :]
            exact = combination_weights(statistics, cutoff=CUTOFF).numpy()
            public, indefinite = as_in_the_public_code(statistics)
            for name, alpha in {"ours": exact, "public code": public}.items():
                share = 100 * (alpha * outside).sum() / len(alpha)
                partners = (alpha > CUTOFF).sum() / len(alpha)
                print(f"{dataset},{s},{name},{share:.1f},{partners:.1f},{abs(alpha - exact).max():.0e},{indefinite}")


if __name__ == "__main__":
    main()
