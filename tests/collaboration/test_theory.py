import numpy as np
import oracle
import pytest
import torch

from fedpac.collaboration import combination_weights
from fedpac.collaboration.theory import (
    DiscreteFederation,
    chi_square,
    estimated_gap,
    fit_classifier,
    generalisation_gap,
    linear_model,
)

X, K, D, M = 7, 3, 2, 3


def make_federation(mean: float = 0.0, seed: int = 0) -> DiscreteFederation:
    """Random conditionals on one marginal (Assumption 1); features of mean zero (Assumption 2) unless told not to."""
    rng = np.random.default_rng(seed)
    marginal = rng.dirichlet(np.full(X, 3.0))
    conditionals = rng.dirichlet(np.full(K, 0.3), size=(M, X))
    features = rng.normal(size=(X, D))
    features += mean - marginal @ features
    return DiscreteFederation(marginal[:, None] * conditionals, features, np.array([10, 40, 22]))


def test_chi_square_and_the_model_are_those_of_the_paper():
    f = make_federation()
    P, Q = f.joints[0], f.joints[1]
    by_hand = sum((P[x, y] - Q[x, y]) ** 2 / f.marginal[x] for x in range(X) for y in range(K))
    assert chi_square(P, Q, f.marginal) == pytest.approx(by_hand)
    g = np.random.default_rng(1).normal(size=(K, D))
    assert linear_model(f.features, g)[4, 2] == pytest.approx((1 + f.features[4] @ g[2]) / K)


@pytest.mark.parametrize("mean", [0.0, 0.7])
def test_the_classifier_minimises_chi_square(mean):
    f = make_federation(mean)
    P = f.joints[1]

    def loss(g):
        return chi_square(P, f.marginal[:, None] * linear_model(f.features, g), f.marginal)

    best = fit_classifier(P, f.features, f.marginal)
    rng = np.random.default_rng(2)
    for direction in rng.normal(size=(20, K, D)):
        assert loss(best + 1e-3 * direction) > loss(best)
        slope = (loss(best + 1e-4 * direction) - loss(best - 1e-4 * direction)) / 2e-4
        assert abs(slope) < 1e-9
    if mean == 0:  # as printed in appendix A.2
        Lambda = f.features.T @ np.diag(f.marginal) @ f.features
        for y in range(K):
            printed = K * np.linalg.inv(Lambda) @ sum(P[x, y] * f.features[x] for x in range(X))
            np.testing.assert_allclose(best[y], printed)


@pytest.mark.parametrize("mean", [0.0, 0.7])
@pytest.mark.parametrize("i", range(M))
def test_theorem_1_by_simulation(i, mean):
    """Draw the clients' samples many times, fit, combine, measure: the average must be the closed form."""
    f = make_federation(mean)
    rng = np.random.default_rng(100 + i)
    alpha = np.array([0.3, 0.3, 0.4])
    draws = [rng.multinomial(n, P.ravel(), size=1500) / n for n, P in zip(f.sizes, f.joints, strict=True)]
    losses = []
    for empirical in zip(*draws, strict=True):
        fitted = [fit_classifier(P_hat.reshape(X, K), f.features, f.marginal) for P_hat in empirical]
        combined = sum(a * g for a, g in zip(alpha, fitted, strict=True))
        losses.append(chi_square(f.joints[i], f.marginal[:, None] * linear_model(f.features, combined), f.marginal))
    error = np.std(losses) / np.sqrt(len(losses))
    expected = f.expected_loss(i, alpha)
    assert abs(np.mean(losses) - expected) < 4 * error
    assert 4 * error < 0.2 * alpha**2 @ (f.variance() / f.sizes)  # fine enough to miss neither part of the sum
    assert 4 * error < 0.2 * alpha @ f.bias(i) @ alpha


def test_the_parts_of_theorem_1_are_distances():
    """Bias and irreducible part, first as the χ² distances of eq. alpha, then as the traces of eq. djj."""
    f = make_federation()
    alpha = np.array([0.1, 0.6, 0.3])
    g = [fit_classifier(P, f.features, f.marginal) for P in f.joints]
    model = [f.marginal[:, None] * linear_model(f.features, one) for one in g]
    for i in range(M):
        mixed = sum(a * Q for a, Q in zip(alpha, model, strict=True))
        assert alpha @ f.bias(i) @ alpha == pytest.approx(chi_square(model[i], mixed, f.marginal))
        assert f.irreducible(i) == pytest.approx(chi_square(f.joints[i], model[i], f.marginal))


def test_theory_and_practice_are_the_same_quadratic():
    """Clients whose samples are exactly their distribution: the weights from statistics minimise Theorem 1's loss."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(X, D))
    mixes = rng.dirichlet(np.ones(K), size=(M, X))
    counts = np.array([[rng.multinomial(6, mix) for mix in client] for client in mixes])  # 6 samples at each x
    f = DiscreteFederation(counts / counts[0].sum(), features, np.full(M, counts[0].sum()))
    clients = []
    for table in counts:
        x, y = np.nonzero(table)
        repeats = table[x, y]
        clients.append((features[np.repeat(x, repeats)], np.repeat(y, repeats)))
    statistics = [oracle.statistics_of(client, K) for client in clients]
    alpha = combination_weights(statistics, "local", ridge=0, cutoff=0).numpy()
    for i in range(M):
        best = f.expected_loss(i, alpha[i])
        for other in rng.dirichlet(np.ones(M), size=200):
            assert f.expected_loss(i, other) >= best - 1e-12
            assert f.expected_loss(i, 0.99 * alpha[i] + 0.01 * other) >= best - 1e-12
    assert (alpha > 0.01).sum() > M  # somebody does collaborate


def exact_sample(seed=4):
    """A distribution, and samples with exactly its label frequencies but features of their own."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(X), size=K).T * np.array([0.5, 0.25, 0.25])
    features, g = rng.normal(size=(X, D)), rng.normal(size=(K, D))
    labels = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    points = np.array([rng.choice(X, p=P[:, y] / P[:, y].sum()) for y in labels])
    P_hat = np.zeros((X, K))
    np.add.at(P_hat, (points, labels), 1 / len(labels))
    return P, P_hat, features, g, points, labels


def test_the_estimated_gap_is_exact_with_the_true_centroids():
    P, P_hat, features, g, points, labels = exact_sample()
    truth = (P / P.sum(0)).T @ features
    to = torch.tensor
    estimated = estimated_gap(to(features[points]), to(labels), to(truth), to(g))
    exact = generalisation_gap(P, P_hat, features, g)
    assert abs(exact) > 0.01
    assert estimated == pytest.approx(exact, rel=1e-12)
    own = (P_hat / P_hat.sum(0)).T @ features
    assert estimated_gap(to(features[points]), to(labels), to(own), to(g)) == pytest.approx(0, abs=1e-12)


def test_the_gap_is_how_training_and_testing_loss_differ_between_classifiers():
    P, P_hat, features, _, _, _ = exact_sample()
    marginal = np.full(X, 1 / X)
    rng = np.random.default_rng(5)

    def difference_without_gap(g):
        model = marginal[:, None] * linear_model(features, g)
        training, testing = chi_square(P_hat, model, marginal), chi_square(P, model, marginal)
        return testing - training + generalisation_gap(P, P_hat, features, g)

    constants = [difference_without_gap(g) for g in rng.normal(size=(5, K, D))]
    np.testing.assert_allclose(constants, constants[0], rtol=1e-9)
