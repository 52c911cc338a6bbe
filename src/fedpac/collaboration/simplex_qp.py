"""Many small quadratic programmes over the probability simplex, solved exactly by an active-set method.

    minimise  ½ a'Q a - c'a      subject to  a >= 0, Σ a = 1                  (eq. quad is of this form)

with one positive semidefinite Q for all problems and one c for each. The method walks from support to support: Newton's
step on the support, cut short where an entry reaches zero (the entry leaves), and after a whole step the entries that
would lower the objective join. Sums are one by elimination: on the support all is relative to a reference entry r,

    P_jk = Q_jk - Q_jr - Q_rk + Q_rr,

which is singular only if a point of the support is an affine combination of the others. A tiny addition to its diagonal
then makes the step long: it runs into the boundary, and the superfluous point leaves.
"""

import contextlib
import ctypes

import numpy as np
import numpy.typing as npt

from fedpac.errors import FedpacError
from fedpac.native import library

Array = npt.NDArray[np.float64]

TOLERANCE = 1e-13  # of the residual below, at which a problem counts as solved
ACCEPTABLE = 1e-8  # above this a result is an error, never an answer
TINY = 1e-14  # what is added to the diagonal of P, relative to the terms it is made of


def solve_simplex_qps(Q: Array, C: Array, start: Array | None = None) -> Array:
    """Row i of the result minimises ½ a'Q a - C[i]'a on the simplex.

    `start` holds a feasible point per row, such as the solutions of an earlier, similar problem; without it the best
    vertex is taken. Where the minimiser is not unique, the start decides which one is found.
    """
    Q, C = np.ascontiguousarray(Q, dtype=np.float64), np.ascontiguousarray(C, dtype=np.float64)
    _check(Q, C, start)
    A = _best_vertices(Q, C) if start is None else np.array(start, dtype=np.float64, order="C")
    open_ = ~_interior(Q, C, A)
    A[open_], residuals = _walk(Q, C[open_], A[open_])
    if not (residuals <= ACCEPTABLE).all():
        raise FedpacError(f"no minimiser found (residual {residuals.max():.1e}): is Q positive semidefinite?")
    return A


def kkt_residual(Q: Array, C: Array, A: Array) -> float:
    """How far A is from optimal, the worst over all rows: 0 is exact. Multiplying Q and C by a number changes nothing.

    With the gradient g = Q a - c and the multiplier λ = a'g, optimal means min(a_j, g_j - λ) = 0 for every j. This is
    max_j |min(a_j, (g_j - λ) / s_j)|, where s_j = (|Q| a + |c|)_j + a'(|Q| a + |c|) is the size of what is summed up to
    make g_j - λ, entry by entry; and |Σ a - 1|, where that is larger.
    """
    return max(float(_residuals(Q, C, A).max()), float(np.abs(A.sum(axis=1) - 1).max()))


def _residuals(Q: Array, C: Array, A: Array) -> Array:
    residuals: Array = np.abs(np.minimum(A, _slack(Q, C, A))).max(axis=1)
    return residuals


def _slack(Q: Array, C: Array, A: Array) -> Array:
    """(g - λ) / s for each row, see kkt_residual; 0 / 0 is 0."""
    support = np.flatnonzero(A.any(axis=0))
    rows, weights = Q[support], A[:, support]
    gradient = weights @ rows - C
    size = weights @ np.abs(rows) + np.abs(C)
    scale = size + np.sum(A * size, axis=1, keepdims=True)
    multiplier = np.sum(A * gradient, axis=1, keepdims=True)
    slack: Array = np.divide(gradient - multiplier, scale, out=np.zeros_like(A), where=scale > 0)
    return slack


def _best_vertices(Q: Array, C: Array) -> Array:
    A = np.zeros_like(C)
    A[np.arange(len(C)), np.argmin(0.5 * np.diag(Q) - C, axis=1)] = 1.0
    return A


def _interior(Q: Array, C: Array, A: Array) -> npt.NDArray[np.bool_]:
    """Where all clients are much alike every weight is positive: one factorisation then solves all problems at once.

    The minimiser for Σ a = 1 alone is affine in c. So that of the mean c tells in advance whether to try: if it has a
    negative entry, so has another. Rows of A that could be solved are replaced; returns which.
    """

    def minimisers(C: Array) -> Array:
        solved = np.linalg.solve(Q, np.vstack([C, np.ones(len(Q))]).T).T
        free, ones = solved[:-1], solved[-1]
        found: Array = free + (1 - free.sum(axis=1, keepdims=True)) / ones.sum() * ones
        return found

    done = np.zeros(len(C), dtype=bool)
    with np.errstate(all="ignore"), contextlib.suppress(np.linalg.LinAlgError):
        if (minimisers(C.mean(axis=0, keepdims=True)) >= 0).all():
            found = minimisers(C)
            done = np.min(found, axis=1) >= 0
            done[done] = _residuals(Q, C[done], found[done]) <= TOLERANCE
            A[done] = found[done]
    return done


def _walk(Q: Array, C: Array, A: Array) -> tuple[Array, Array]:
    """From the feasible points A to the minimisers; returns these and their residuals."""
    A, residuals = np.ascontiguousarray(A), np.zeros(len(C))
    native = library()
    if native is None:
        for i in range(len(C)):
            residuals[i] = _walk_one(Q, C[i], A[i])
    else:
        doubles = ctypes.POINTER(ctypes.c_double)
        arrays = (array.ctypes.data_as(doubles) for array in (Q, np.ascontiguousarray(C), A, residuals))
        native.fedpac_simplex_qps(ctypes.c_int64(len(Q)), ctypes.c_int64(len(C)), *arrays)
    return A, residuals


def _walk_one(Q: Array, c: Array, a: Array) -> float:
    """Improve the feasible point `a` in place until it is optimal; return its residual. As in simplex_qp.cpp."""
    support = np.flatnonzero(a)
    best, best_residual = a.copy(), np.inf
    whole_step = True
    for _ in range(50 + 10 * len(c)):
        if whole_step:  # the point minimises on its support, up to round-off: optimal, or some entries should join
            slack = _slack(Q, c[None], a[None])[0]
            residual = float(np.abs(np.minimum(a, slack)).max())
            if residual < best_residual:
                best[:], best_residual = a, residual
            if residual <= TOLERANCE:
                break
            slack[support] = 0.0
            wanted = np.flatnonzero(slack < -TOLERANCE)
            most_eager = np.argsort(slack[wanted], kind="stable")[: len(support)]
            support = np.concatenate([support, wanted[most_eager]])
        largest = int(np.argmax(a[support]))
        support[[0, largest]] = support[[largest, 0]]
        step = _newton_step(Q, c, a, support)
        falling = step < 0
        limits = a[support[falling]] / -step[falling]
        length = min(1.0, limits.min(initial=np.inf))
        whole_step = length == 1.0
        a[support] = np.maximum(a[support] + length * step, 0.0)
        leaving = np.zeros(len(support), dtype=bool)
        leaving[falling] = limits <= length
        a[support[leaving]] = 0.0
        support = support[~leaving]
        a /= a.sum()
    a[:] = best
    return best_residual


def _newton_step(Q: Array, c: Array, a: Array, support: npt.NDArray[np.intp]) -> Array:
    """The step from a to the minimiser over all points with this support and sum one; its first entry is r."""
    block, c = Q[support[:, None], support], c[support]
    gradient = block @ a[support] - c
    terms = np.diag(block) + 2 * np.abs(block[0]) + block[0, 0] + np.abs(c) + abs(c[0])
    relative = block - block[0]
    P = relative[1:, 1:] - relative[1:, :1]
    P.flat[:: len(support)] += TINY * terms[1:] + np.finfo(float).tiny
    others = np.linalg.solve(P, gradient[0] - gradient[1:])
    return np.concatenate([[-others.sum()], others])


def _check(Q: Array, C: Array, start: Array | None) -> None:
    if Q.ndim != 2 or C.ndim != 2 or Q.shape != (C.shape[1], C.shape[1]) or not Q.size:
        raise FedpacError(f"expected Q (m, m) and C (problems, m), got {Q.shape} and {C.shape}")
    for name, rows in (("Q", Q), ("C", C)):
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(bad):
            raise FedpacError(f"{name} has a value that is not finite in row {bad[0]}")
    if start is not None and not (
        np.shape(start) == C.shape and np.min(start) >= 0 and np.allclose(np.sum(start, axis=1), 1)
    ):
        raise FedpacError("every row of start must be a point of the simplex, of the shape of C")
