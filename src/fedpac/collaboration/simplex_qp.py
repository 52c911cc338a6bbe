"""Many small quadratic programmes over the probability simplex, solved exactly by an active-set method.

    minimise  ½ a'Q a - c'a      subject to  a >= 0, Σ a = 1                  (eq. quad is of this form)

with one positive semidefinite Q for all problems and one c for each. The method walks from support to support: Newton's
step on the support, cut short where an entry reaches zero (the entry leaves), and after a whole step the entries that
would lower the objective join. Sums are one by elimination: on the support all is relative to a reference entry r,

    P_jk = Q_jk - Q_jr - Q_rk + Q_rr,

which is singular only if a point of the support is an affine combination of the others. A pivot that vanishes is
replaced by a tiny one: the step then becomes long, runs into the boundary, and the superfluous point leaves.
"""

import numpy as np
import numpy.typing as npt

from fedpac.errors import FedpacError

Array = npt.NDArray[np.float64]

TOLERANCE = 1e-13  # of the residual below, at which a problem counts as solved
ACCEPTABLE = 1e-8  # above this a result is an error, never an answer
TINY_PIVOT = 1e-14  # relative to the diagonal of P


def solve_simplex_qps(Q: Array, C: Array, start: Array | None = None) -> Array:
    """Row i of the result minimises ½ a'Q a - C[i]'a on the simplex.

    `start` holds a feasible point per row, such as the solutions of an earlier, similar problem; without it the best
    vertex is taken. Where the minimiser is not unique, the start decides which one is found.
    """
    Q, C = np.ascontiguousarray(Q, dtype=np.float64), np.ascontiguousarray(C, dtype=np.float64)
    _check(Q, C)
    if start is None:
        A = np.zeros_like(C)
        A[np.arange(len(C)), np.argmin(0.5 * np.diag(Q) - C, axis=1)] = 1.0
    else:
        A = np.clip(start, 0.0, None, dtype=np.float64)
        A /= A.sum(axis=1, keepdims=True)
    residuals = np.array([_solve_one(Q, c, a) for c, a in zip(C, A, strict=True)])
    if not (residuals <= ACCEPTABLE).all():
        worst = int(np.argmax(residuals))
        raise FedpacError(
            f"problem {worst} of {len(C)} was solved only to a residual of {residuals[worst]:.1e}; "
            "is Q positive semidefinite?"
        )
    return A


def kkt_residual(Q: Array, C: Array, A: Array) -> float:
    """How far A is from optimal, the worst over all rows: 0 is exact. Multiplying Q and C by a number changes nothing.

    With the gradient g = Q a - c and the multiplier λ = a'g, optimal means min(a_j, g_j - λ) = 0 for every j. This is
    max_j |min(a_j, (g_j - λ) / s_j)|, where s_j = (|Q| a + |c|)_j + a'(|Q| a + |c|) is the size of what is summed up to
    make g_j - λ, entry by entry; and |Σ a - 1|, where that is larger.
    """
    worst = 0.0
    for c, a in zip(C, A, strict=True):
        worst = max(worst, float(np.abs(np.minimum(a, _slack(Q, c, a))).max()), abs(float(a.sum()) - 1.0))
    return worst


def _slack(Q: Array, c: Array, a: Array) -> Array:
    """(g - λ) / s, see kkt_residual; 0 / 0 is 0."""
    support = np.flatnonzero(a)
    columns, weights = Q[support].T, a[support]
    gradient = columns @ weights - c
    size = np.abs(columns) @ weights + np.abs(c)
    scale = size + a @ size
    slack: Array = np.divide(gradient - a @ gradient, scale, out=np.zeros_like(a), where=scale > 0)
    return slack


def _solve_one(Q: Array, c: Array, a: Array) -> float:
    """Improve the feasible point `a` in place until it is optimal; return its residual (see kkt_residual)."""
    support = np.flatnonzero(a)
    best, best_residual = a.copy(), np.inf
    whole_step = True
    for _ in range(50 + 10 * len(c)):
        if whole_step:  # the point minimises on its support, up to round-off: optimal, or some entries should join
            slack = _slack(Q, c, a)
            residual = float(np.abs(np.minimum(a, slack)).max())
            if residual < best_residual:
                best[:], best_residual = a, residual
            if residual <= TOLERANCE:
                break
            wanted = np.flatnonzero(slack < -TOLERANCE)
            wanted = wanted[a[wanted] == 0]
            wanted = wanted[np.argsort(slack[wanted], kind="stable")[: len(support)]]
            support = np.concatenate([support, wanted])
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
    """The step from a to the minimiser over all points with this support and sum one."""
    block = Q[np.ix_(support, support)]
    gradient = block @ a[support] - c[support]
    reference = int(np.argmax(a[support]))
    others = np.delete(np.arange(len(support)), reference)
    P = block - block[reference] - block[:, reference, None] + block[reference, reference]
    P = P[np.ix_(others, others)]
    diagonal = np.maximum(np.diag(P), np.finfo(float).tiny)
    scale = 1 / np.sqrt(diagonal)
    eigenvalues, vectors = np.linalg.eigh(P * scale[:, None] * scale)
    eigenvalues = np.maximum(eigenvalues, TINY_PIVOT)
    step = np.zeros(len(support))
    right = scale * (gradient[reference] - gradient[others])
    step[others] = scale * (vectors @ ((vectors.T @ right) / eigenvalues))
    step[reference] = -step.sum()
    return step


def _check(Q: Array, C: Array) -> None:
    if Q.ndim != 2 or C.ndim != 2 or Q.shape != (C.shape[1], C.shape[1]) or not Q.size:
        raise FedpacError(f"expected Q (m, m) and C (problems, m), got {Q.shape} and {C.shape}")
    for name, rows in (("Q", Q), ("C", C)):
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(bad):
            raise FedpacError(f"{name} has a value that is not finite in row {bad[0]}")
