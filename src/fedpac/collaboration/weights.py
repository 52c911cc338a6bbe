"""The combination weights α of FedPAC: which classifiers a client should average (paper eq. quad and eq. quadrat).

For client i the paper minimises its expected testing loss, bias plus variance, over the simplex:

    R_i(α) = Σ_jj' α_j α_j' D_jj' + Σ_j α_j² V_j / n_j,      D_jj' = tr(Λ_i⁻¹ Σ_y (h_iy - h_jy)(h_iy - h_j'y)')

Since Σ α = 1 this is |h_i - Σ_j α_j h_j|² + Σ_j α_j² v_j, with v = V / n and h over all classes as one long vector.
With the Gram matrix G = H H' all clients share the Hessian G + diag(v), and G[i] is all that is client i's own.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedpac.collaboration.simplex_qp import Array, solve_simplex_qps
from fedpac.collaboration.statistics import FeatureStatistics, global_mean
from fedpac.errors import ConfigError, DataError, TrainingError, unknown
from fedpac.timing import span

Covariance = Literal["identity", "pooled", "local"]
COVARIANCES = ("identity", "pooled", "local")

VARIANCE_FLOOR = 1e-9
MOST_CLIENTS = 20_000  # in one solve: its matrices have as many entries as there are pairs of clients


@span("combination weights")
def combination_weights(
    statistics: Sequence[FeatureStatistics],
    covariance: Covariance = "identity",
    centre: bool = False,
    ridge: float = 1e-3,
    cutoff: float = 1e-3,
    clients: Sequence[int] | None = None,
) -> Tensor:
    """Row i of the result (m, m; float64) holds the weights of all classifiers in client i's own; rows sum to one.

    Rows and columns follow the order of `statistics`, and nothing else.

    covariance  the Λ of Theorem 1: 'identity' is the paper's algorithm (appendix A.5); 'pooled' takes the second moment
                over all samples of all clients, 'local' each client's own, as in appendix A.3. The latter two need
                statistics with the whole scatter; 'local' costs one Gram matrix per client.
    centre      move the features so that their global mean is zero (Assumption 2).
    ridge       Λ + ridge · tr(Λ)/d · I is inverted in place of Λ, which may be singular.
    cutoff      weights below it become zero (the authors' 1e-3), but none above half the row's largest; 0 keeps all.
    clients     the clients' names in error messages; their positions, if not given.
    """
    if covariance not in COVARIANCES:
        raise ConfigError(unknown("covariance", covariance, COVARIANCES))
    _check(statistics, covariance, range(len(statistics)) if clients is None else clients)
    if centre:
        origin = global_mean(statistics)
        statistics = [s.centred(origin) for s in statistics]
    begin = np.eye(len(statistics))  # every client its own classifier

    if covariance == "local":
        rows = []
        for i, own in enumerate(statistics):
            Q, C = quadratic_form(_whitened(statistics, own.second_moment, ridge))
            rows.append(solve_simplex_qps(Q, C[i : i + 1], begin[i : i + 1]))
        alpha = np.concatenate(rows)
    else:
        if covariance == "pooled":
            statistics = _whitened(statistics, pooled_moment(statistics), ridge)
        alpha = solve_simplex_qps(*quadratic_form(statistics), begin)
    return torch.from_numpy(_without_small(alpha, cutoff))


@span("combination weights")
def newcomer_weights(
    statistics: Sequence[FeatureStatistics],
    newcomer: FeatureStatistics,
    covariance: Covariance = "identity",
    centre: bool = False,
    ridge: float = 1e-3,
    cutoff: float = 1e-3,
    clients: Sequence[int] | None = None,
) -> Tensor:
    """The weights (m; float64) of m clients' classifiers in that of a newcomer, who has none to add to them.

    The same objective as in `combination_weights`, with the newcomer's h and the participants' alone to choose from.
    """
    everybody = [*statistics, newcomer]
    _check(everybody, covariance, [*(range(len(statistics)) if clients is None else clients), "that is new"])
    if centre:
        origin = global_mean(statistics)
        everybody = [s.centred(origin) for s in everybody]
    if covariance != "identity":
        moment = everybody[-1].second_moment if covariance == "local" else pooled_moment(everybody[:-1])
        everybody = _whitened(everybody, moment, ridge)
    Q, C = quadratic_form(everybody)
    alpha = solve_simplex_qps(Q[:-1, :-1], C[-1:, :-1])
    return torch.from_numpy(_without_small(alpha, cutoff)[0])


def pooled_moment(statistics: Sequence[FeatureStatistics]) -> Tensor:
    """The second moment over all samples of all clients."""
    return torch.stack([s.n * s.second_moment for s in statistics]).sum(0) / sum(s.n for s in statistics)


def bounded(alpha: Tensor, most: float) -> Tensor:
    """No client has more than `most` in another's row; what is cut off goes to the client whose row it is.

    Statistics can be made up: without a bound, whoever sends those of client i may take up to all of its head.
    """
    cut = alpha.clamp(max=most)
    cut.fill_diagonal_(0.0)
    return cut + torch.diag(1 - cut.sum(1))


def only_from(near: Sequence[int], alpha: Tensor) -> Tensor:
    """Nobody else's row has a weight for a client that is not near; what is cut off goes to whose row it is."""
    if len(near) == len(alpha):
        return alpha
    cut = torch.zeros_like(alpha)
    cut[:, near] = alpha[:, near]
    cut.fill_diagonal_(0.0)
    return cut + torch.diag(1 - cut.sum(1))


def quadratic_form(statistics: Sequence[FeatureStatistics]) -> tuple[Array, Array]:
    """Q and C such that R_i(α) = α'Q α - 2 C[i]'α + a constant, on the simplex.

    Two liberties with the numbers. H is taken relative to its mean over the clients: only differences of h matter, and
    G would drown them in what all clients share. And v_j is at least 1e-9 |h_j|²: a client with one sample has V = 0,
    and among several such clients that agree every split would be optimal; this makes it the even one.
    """
    H = torch.stack([s.h.flatten() for s in statistics]).numpy()
    v = np.array([s.V / s.n for s in statistics])
    v = np.maximum(v, VARIANCE_FLOOR * np.square(H).sum(1))
    H = H - H.mean(0)
    G = H @ H.T
    return G + np.diag(v), G


def _whitened(statistics: Sequence[FeatureStatistics], moment: Tensor, ridge: float) -> list[FeatureStatistics]:
    d = len(moment)
    level = float(moment.trace()) / d or 1.0  # features that are all zero: any scale will do
    factor, failed = torch.linalg.cholesky_ex(moment + ridge * level * torch.eye(d, dtype=torch.float64))
    if failed:
        raise ConfigError(
            f"a second moment of features is singular and cannot be inverted: increase ridge (now {ridge})"
        )
    inverse = torch.cholesky_inverse(factor)
    root = torch.linalg.solve_triangular(factor, torch.eye(d, dtype=torch.float64), upper=False).T
    return [s.whitened(root, inverse) for s in statistics]


def _without_small(alpha: Array, cutoff: float) -> Array:
    limit = np.minimum(cutoff, 0.5 * alpha.max(axis=1, keepdims=True))
    kept = np.where(alpha < limit, 0.0, alpha)
    return np.asarray(kept / kept.sum(axis=1, keepdims=True))


def _check(statistics: Sequence[FeatureStatistics], covariance: str, clients: Sequence[object]) -> None:
    if not statistics:
        raise DataError("combination weights need the statistics of at least one client")
    if len(statistics) > MOST_CLIENTS:
        raise ConfigError(
            f"combination weights of {len(statistics):,} clients at once would take "
            f"{8 * len(statistics) ** 2 / 1e9:,.0f} GB for each matrix; at most {MOST_CLIENTS:,} may take part in a "
            "round: lower run.participation, and set run.everybody_last = false"
        )
    shape = statistics[0].means.shape
    for client, s in zip(clients, statistics, strict=True):
        if s.means.shape != shape:
            raise DataError(
                f"client {client} has class means of shape {tuple(s.means.shape)}, but client {clients[0]} "
                f"{tuple(shape)}: classes and feature dimension must agree"
            )
        if not all(bool(t.isfinite().all()) for t in s.to_tensors().values()):
            raise TrainingError(f"the feature statistics of client {client} are not finite: its features diverged")
        if s.n <= 0:
            raise DataError(f"client {client} has no samples")
        if covariance != "identity" and s.scatter.ndim == 0:
            raise DataError(
                f"covariance '{covariance}' needs second moments, which client {client} did not send: "
                "ask for feature_statistics(..., covariance=True)"
            )
