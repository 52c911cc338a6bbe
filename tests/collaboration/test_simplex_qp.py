import itertools

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpac.collaboration import kkt_residual, simplex_qp, solve_simplex_qps
from fedpac.errors import FedpacError
from fedpac.native import available


@pytest.fixture(params=["native", "numpy"])
def backend(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(simplex_qp, "library", lambda: None)
    elif not available():
        pytest.skip("no native library on this machine")
    return request.param


def objective(Q, c, a):
    return 0.5 * a @ Q @ a - c @ a


def collaboration_problem(H, v):
    G = H @ H.T
    return G + np.diag(v), G


def random_problem(seed, m=12, rank=5, problems=6):
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(m, rank))
    return B @ B.T, rng.normal(size=(problems, m))


def hard_problems():
    rng = np.random.default_rng(0)
    H = rng.normal(size=(30, 3))
    some_zero = np.where(rng.random(30) < 0.5, 0.0, rng.random(30))
    twins = np.repeat(rng.normal(size=(3, 8)), 10, axis=0)
    integers = rng.integers(-1, 2, size=(30, 3)).astype(float)
    scales = 10.0 ** rng.uniform(-6, 6, size=30)
    return {
        "one client": (np.array([[2.0]]), np.array([[5.0]])),
        "nothing but zeros": (np.zeros((4, 4)), np.zeros((3, 4))),
        "linear programme": (np.zeros((30, 30)), rng.normal(size=(20, 30))),
        "no variance": collaboration_problem(H, np.zeros(30)),
        "some variance": collaboration_problem(H, some_zero),
        "twins": collaboration_problem(twins, rng.uniform(0.1, 1, 30)),
        "twins without variance": collaboration_problem(twins, np.zeros(30)),
        "all alike": collaboration_problem(np.ones((30, 2)), rng.uniform(0.1, 1, 30)),
        "ties": (integers @ integers.T, rng.integers(-2, 3, size=(20, 30)).astype(float)),
        "low rank": (H @ H.T, rng.normal(size=(20, 30))),
        "tiny numbers": collaboration_problem(1e-6 * H, 1e-12 * some_zero),
        "huge numbers": collaboration_problem(1e6 * H, 1e12 * some_zero),
        "clients of all scales": collaboration_problem(H * scales[:, None], some_zero * scales**2),
        "variances of all scales": collaboration_problem(H, 10.0 ** rng.uniform(-12, 6, 30)),
        "far apart": collaboration_problem(1e4 * np.eye(30), np.full(30, 0.1)),
    }


@pytest.mark.parametrize("name", hard_problems())
@pytest.mark.parametrize("start", ["vertex", "middle"])
def test_hard_problems_are_solved_to_round_off(backend, name, start):
    Q, C = hard_problems()[name]
    A = solve_simplex_qps(Q, C, np.full(C.shape, 1 / len(Q)) if start == "middle" else None)
    assert (A >= 0).all()
    assert kkt_residual(Q, C, A) < 1e-10


@pytest.mark.parametrize("name", ["some variance", "twins", "ties", "low rank", "all alike"])
def test_agrees_with_cvxpy(backend, name):
    Q, C = hard_problems()[name]
    root = np.linalg.cholesky(Q + 1e-12 * np.eye(len(Q))).T
    for c, a in zip(C[:4], solve_simplex_qps(Q, C)[:4], strict=True):
        x = cvxpy.Variable(len(Q))
        problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(root @ x) / 2 - c @ x), [x >= 0, cvxpy.sum(x) == 1])
        problem.solve(solver=cvxpy.CLARABEL)
        assert objective(Q, c, a) == pytest.approx(problem.value, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_trying_every_support(backend, seed):
    """The minimiser lies inside one of the 2^m - 1 faces: solve each with a dense solver and take the best."""
    Q, C = random_problem(seed, m=6, rank=3 + seed % 4, problems=3)
    for c, a in zip(C, solve_simplex_qps(Q, C), strict=True):
        best = np.inf
        for size in range(1, 7):
            for face in map(list, itertools.combinations(range(6), size)):
                kkt = np.block([[Q[np.ix_(face, face)], np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
                x = np.linalg.lstsq(kkt, np.append(c[face], 1.0), rcond=None)[0][:size]
                if (x >= -1e-12).all() and abs(x.sum() - 1) < 1e-9:
                    best = min(best, objective(Q[np.ix_(face, face)], c[face], x))
        assert objective(Q, c, a) == pytest.approx(best, abs=1e-10)


def test_native_equals_numpy(monkeypatch):
    if not available():
        pytest.skip("no native library on this machine")
    rng = np.random.default_rng(1)
    Q, C = collaboration_problem(rng.normal(size=(60, 40)), rng.uniform(0.5, 5, 60))
    native = solve_simplex_qps(Q, C)
    monkeypatch.setattr(simplex_qp, "library", lambda: None)
    np.testing.assert_allclose(solve_simplex_qps(Q, C), native, atol=1e-12)
    assert 2 < (native > 0).sum(axis=1).mean() < 50  # a walk of some length, not a corner and not the interior


def test_the_start_does_not_change_the_answer(backend):
    rng = np.random.default_rng(2)
    Q, C = collaboration_problem(rng.normal(size=(25, 40)), rng.uniform(0.5, 5, 25))
    cold = solve_simplex_qps(Q, C)
    for start in (cold, np.roll(cold, 1, axis=0), rng.dirichlet(np.ones(25), size=25)):
        np.testing.assert_allclose(solve_simplex_qps(Q, C, start), cold, atol=1e-12)


def test_many_alike_are_solved_by_one_factorisation(monkeypatch):
    monkeypatch.setattr(simplex_qp, "_walk_one", pytest.fail)
    monkeypatch.setattr(simplex_qp, "library", lambda: None)
    v = np.random.default_rng(3).uniform(0.1, 1, 300)
    Q, C = collaboration_problem(np.ones((300, 2)), v)
    A = solve_simplex_qps(Q, C)
    np.testing.assert_allclose(A, np.tile(1 / v / (1 / v).sum(), (300, 1)), rtol=1e-9)


problems = st.builds(
    random_problem, seed=st.integers(0, 10**6), m=st.integers(1, 15), rank=st.integers(1, 15), problems=st.just(2)
)


@settings(max_examples=60, deadline=None)
@given(problems, st.integers(0, 10**6))
def test_no_feasible_direction_improves(problem, seed):
    Q, C = problem
    A = solve_simplex_qps(Q, C)
    assert (A >= 0).all()
    np.testing.assert_allclose(A.sum(axis=1), 1, atol=1e-12)
    rng = np.random.default_rng(seed)
    for c, a in zip(C, A, strict=True):
        for b in [*np.eye(len(a)), *rng.dirichlet(np.full(len(a), 0.3), size=5)]:
            for length in (1.0, 1e-3):
                assert objective(Q, c, a + length * (b - a)) >= objective(Q, c, a) - 1e-12 * (1 + np.abs(Q).max())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 15), st.floats(-12, 12))
def test_scaling_and_permuting(seed, m, power):
    rng = np.random.default_rng(seed)
    Q, C = collaboration_problem(rng.normal(size=(m, 6)), rng.uniform(0.1, 2, m))
    A = solve_simplex_qps(Q, C)
    np.testing.assert_allclose(solve_simplex_qps(10**power * Q, 10**power * C), A, atol=1e-9)
    order = rng.permutation(m)
    permuted = solve_simplex_qps(Q[np.ix_(order, order)], C[np.ix_(order, order)])
    np.testing.assert_allclose(permuted, A[np.ix_(order, order)], atol=1e-9)


def test_residual_sees_every_kind_of_mistake():
    Q, C = random_problem(5)
    A = solve_simplex_qps(Q, C)
    assert kkt_residual(Q, C, A) < 1e-13
    assert kkt_residual(1e9 * Q, 1e9 * C, A) == pytest.approx(kkt_residual(Q, C, A), abs=1e-14)
    moved = A.copy()
    moved[3, np.argmax(A[3])] -= 1e-4
    moved[3, np.argmin(A[3])] += 1e-4
    assert 1e-6 < kkt_residual(Q, C, moved) < 1e-3
    assert kkt_residual(np.zeros((2, 2)), np.zeros((1, 2)), np.array([[0.5, 0.6]])) == pytest.approx(0.1)
    corner = np.zeros_like(A)
    corner[:, np.argmin(A[0])] = 1.0
    assert kkt_residual(Q, C, corner) > 1e-2
    negative = A.copy()
    negative[0, np.argmin(A[0])] -= 0.1
    negative[0, np.argmax(A[0])] += 0.1
    assert kkt_residual(Q, C, negative) >= 0.1 - 1e-12


def test_what_cannot_be_solved_is_an_error(backend):
    Q, C = random_problem(0)
    Q_bad, C_bad = Q.copy(), C.copy()
    Q_bad[2, 3], C_bad[4, 0] = np.nan, np.inf
    with pytest.raises(FedpacError, match=r"Q .* row 2"):
        solve_simplex_qps(Q_bad, C)
    with pytest.raises(FedpacError, match=r"C .* row 4"):
        solve_simplex_qps(Q, C_bad)
    with pytest.raises(FedpacError, match="expected Q"):
        solve_simplex_qps(Q, C[:, :-1])
    for start in (np.ones_like(C), np.eye(3), -C):
        with pytest.raises(FedpacError, match="start"):
            solve_simplex_qps(Q, C, start)


def test_a_bad_answer_is_never_returned(monkeypatch):
    monkeypatch.setattr(simplex_qp, "library", lambda: None)
    monkeypatch.setattr(simplex_qp, "_walk_one", lambda Q, c, a: 1e-3)
    with pytest.raises(FedpacError, match="residual"):
        solve_simplex_qps(*random_problem(0))
