"""How long the combination weights take: C++, NumPy, and one cvxpy problem per client as in the authors' code.

    python benchmarks/solver.py

Clients stand in five groups of dominant classes, as in the study, with Gaussian features. Only the quadratic programmes
are timed, in seconds of one processor; the statistics they start from are the same for all three.
"""

import os
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core for all three; must precede the import of numpy

import statistics
import time
from collections.abc import Callable
from typing import Any

import cvxpy
import numpy as np
import torch

from fedpac import native
from fedpac.collaboration import FeatureStatistics, feature_statistics, kkt_residual, simplex_qp, solve_simplex_qps
from fedpac.collaboration.simplex_qp import Array
from fedpac.collaboration.weights import quadratic_form

CLIENTS = (20, 100, 300, 1000)
CVXPY_LIMIT = 100  # seconds beyond
DOMINANT = torch.tensor([[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]])


def grouped_clients(m: int, d: int = 128, n: int = 600, seed: int = 0) -> list[FeatureStatistics]:
    """m clients of n samples: a fifth over all ten classes, the rest over the three dominant classes of the group."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, d, generator=generator)
    found = []
    for i in range(m):
        labels = torch.cat([torch.arange(n // 5) % 10, DOMINANT[i % 5][torch.arange(n - n // 5) % 3]])
        found.append(feature_statistics(centres[labels] + torch.randn(n, d, generator=generator), labels, 10))
    return found


def solve_in_numpy(Q: Array, C: Array, start: Array) -> Array:
    with patch.object(simplex_qp, "library", lambda: None):
        return solve_simplex_qps(Q, C, start)


def solve_with_cvxpy(Q: Array, C: Array, start: Array) -> Array:
    """One problem per client, built anew each time, as the public versions do."""
    rows = []
    for c in C:
        a = cvxpy.Variable(len(Q))
        loss = cvxpy.quad_form(a, cvxpy.psd_wrap(Q)) / 2 - c @ a
        cvxpy.Problem(cvxpy.Minimize(loss), [a >= 0, cvxpy.sum(a) == 1]).solve(solver=cvxpy.CLARABEL)
        rows.append(a.value)
    return np.array(rows)


def measure(repeats: int = 3, clients: tuple[int, ...] = CLIENTS) -> list[dict[str, Any]]:
    """One row per number of clients and solver: median, fastest and slowest seconds, residual, ratio to C++."""
    solvers: dict[str, Callable[[Array, Array, Array], Array]] = {}
    if native.available():
        solvers["c++"] = solve_simplex_qps
    solvers |= {"numpy": solve_in_numpy, "cvxpy": solve_with_cvxpy}
    rows: list[dict[str, Any]] = []
    for m in clients:
        Q, C = quadratic_form(grouped_clients(m))
        start = np.eye(m)
        first = None
        for name, solve in solvers.items():
            if name == "cvxpy" and m > CVXPY_LIMIT:
                continue
            seconds = []
            for _ in range(repeats):
                begin = time.process_time()
                A = solve(Q, C, start)
                seconds.append(time.process_time() - begin)
            median = statistics.median(seconds)
            first = first or median
            rows.append(
                {
                    "clients": m,
                    "solver": name,
                    "seconds": median,
                    "fastest": min(seconds),
                    "slowest": max(seconds),
                    "ratio": median / first,
                    "residual": kkt_residual(Q, C, A),
                    "support": float((A > 1e-9).sum(axis=1).mean()),
                }
            )
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    columns = ("clients", "solver", "seconds", "fastest", "slowest", "ratio", "residual", "support")
    print("".join(f"{name:>10}" for name in columns))
    for row in measure():
        texts = (row[name] if isinstance(row[name], str) else f"{row[name]:.4g}" for name in columns)
        print("".join(f"{text:>10}" for text in texts))
