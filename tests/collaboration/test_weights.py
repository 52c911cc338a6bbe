import cvxpy
import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpac.collaboration import FeatureStatistics, combination_weights, feature_statistics, global_mean
from fedpac.errors import ConfigError, DataError, TrainingError

K = 4
SIZES = [9, 14, 3, 1, 20, 6]


def weights(clients, covariance="identity", **options):
    options.setdefault("cutoff", 0)
    statistics = [oracle.statistics_of(client, K) for client in clients]
    return combination_weights(statistics, covariance, **options).numpy()


def inverses(clients, covariance, ridge):
    """Λ_i⁻¹ of every client, from its raw features."""
    d = clients[0][0].shape[1]
    if covariance == "identity":
        return [np.eye(d) for _ in clients]
    features = [z for z, _ in clients]
    if covariance == "pooled":
        features = [np.concatenate(features)] * len(clients)
    moments = [z.T @ z / len(z) for z in features]
    return [np.linalg.inv(M + ridge * np.trace(M) / d * np.eye(d)) for M in moments]


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("covariance", ["identity", "pooled", "local"])
def test_minimise_the_papers_objective(covariance, centre):
    """The paper's loops build D and V from raw features, an interior-point solver minimises: eq. quad, no shortcut."""
    clients = oracle.make_clients(SIZES, K, shift=1.0)
    alpha = weights(clients, covariance, centre=centre, ridge=0.01)
    if centre:
        mean = np.concatenate([z for z, _ in clients]).mean(0)
        clients = [(z - mean, y) for z, y in clients]
    for i, inverse in enumerate(inverses(clients, covariance, 0.01)):
        D = oracle.bias(i, clients, K, inverse)
        v = np.array([max(oracle.variance(c, K, inverse), 0.0) / len(c[1]) for c in clients])
        x = cvxpy.Variable(len(clients))
        loss = cvxpy.quad_form(x, cvxpy.psd_wrap(D)) + v @ cvxpy.square(x)
        value = cvxpy.Problem(cvxpy.Minimize(loss), [x >= 0, cvxpy.sum(x) == 1]).solve(solver=cvxpy.CLARABEL)
        np.testing.assert_allclose(alpha[i] @ D @ alpha[i] + alpha[i] ** 2 @ v, value, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(alpha[i], x.value, atol=2e-3)


def test_identity_is_the_special_case_of_white_features():
    clients = oracle.make_clients([30, 40, 25], K)
    roots = [np.linalg.cholesky(z.T @ z / len(z)) for z, _ in clients]
    white = [(np.linalg.solve(root, z.T).T, y) for root, (z, y) in zip(roots, clients, strict=True)]  # every Λ_i = I
    expected = weights(white)
    assert (expected > 0.05).sum() > 3
    np.testing.assert_allclose(weights(white, "pooled", ridge=0), expected, atol=1e-9)
    np.testing.assert_allclose(weights(white, "local", ridge=0), expected, atol=1e-9)
    assert np.abs(weights(clients, "pooled") - weights(clients)).max() > 1e-2  # else the above would prove nothing


@pytest.mark.parametrize("covariance", ["pooled", "local"])
def test_with_the_covariance_no_linear_map_of_the_features_matters(covariance):
    clients = oracle.make_clients([30, 40, 25], K)
    map_ = np.random.default_rng(1).normal(size=(3, 3))
    mapped = [(z @ map_, y) for z, y in clients]
    expected = weights(clients, covariance, ridge=0)
    np.testing.assert_allclose(weights(mapped, covariance, ridge=0), expected, atol=1e-8)
    assert np.abs(weights(mapped) - weights(clients)).max() > 1e-2


@pytest.mark.parametrize("covariance", ["identity", "pooled", "local"])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_scale_of_the_features_does_not_matter(covariance, scale):
    clients = oracle.make_clients(SIZES, K)
    scaled = [(scale * z, y) for z, y in clients]
    np.testing.assert_allclose(weights(scaled, covariance), weights(clients, covariance), atol=1e-9)


@pytest.mark.parametrize("covariance", ["identity", "pooled", "local"])
def test_one_client_keeps_its_own_classifier(covariance):
    assert weights(oracle.make_clients([5]), covariance).tolist() == [[1.0]]


def like(n, template, spread=1.0):
    """A client whose h is that of the template, with its own size and variance."""
    return FeatureStatistics(template.counts * n, template.means, template.scatter * spread)


def test_identical_clients_share_in_proportion_to_their_certainty():
    template = oracle.statistics_of(oracle.make_clients([12])[0], K, covariance=False)
    statistics = [like(n, template, spread) for n, spread in [(1, 1.0), (2, 1.0), (5, 3.0), (1, 0.2)]]
    v = np.array([s.V / s.n for s in statistics])
    expected = (1 / v) / (1 / v).sum()
    np.testing.assert_allclose(combination_weights(statistics), np.tile(expected, (4, 1)), rtol=1e-9)


def test_twins_without_variance_share_evenly():
    one = (np.array([[1.0, 2.0, 3.0]]), np.array([0]))
    other = (np.array([[-4.0, 0.0, 1.0]]), np.array([1]))
    expected = [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]
    np.testing.assert_allclose(weights([one, one, other]), expected, atol=1e-6)


def test_a_client_far_from_all_others_is_left_alone():
    clients = [(z, np.zeros_like(y)) for z, y in oracle.make_clients([20, 20, 20], K)]
    clients[1] = (clients[1][0] + 1e3, clients[1][1])  # of one class, so this moves h and leaves V
    alpha = weights(clients, cutoff=1e-3)
    assert alpha[1].tolist() == [0, 1, 0]
    assert alpha[0, 1] == alpha[2, 1] == 0
    assert alpha[0, 2] > 0


def test_features_that_are_all_zero_give_finite_weights():
    dead = (np.zeros((4, 3)), np.array([0, 1, 1, 2]))
    for covariance in ("identity", "pooled", "local"):
        alpha = weights([dead, dead, oracle.make_clients([6])[0]], covariance)
        np.testing.assert_allclose(alpha.sum(1), 1)


def test_groups_find_each_other():
    """20 clients in 5 groups, as in the study: its authors report 0.51 for the client itself, 0.16 for three peers."""
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 128, generator=g)
    dominant = torch.tensor([[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]])
    statistics = []
    for i in range(20):
        y = torch.cat([torch.arange(120) % 10, dominant[i % 5][torch.arange(480) % 3]])
        statistics.append(feature_statistics(centres[y] + torch.randn(600, 128, generator=g), y, 10))
    alpha = combination_weights(statistics)
    same = (torch.arange(20).unsqueeze(1) - torch.arange(20)) % 5 == 0
    assert alpha[~same].max() < 0.05
    assert alpha[same].min() > 0.1
    assert 0.4 < alpha.diagonal().min() <= alpha.diagonal().max() < 0.6


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["identity", "pooled", "local"]), st.booleans(), st.data())
def test_permuting_clients_permutes_the_weights(seed, covariance, centre, data):
    """Weights follow the order of the list alone: a client's row and column are its own, wherever it stands."""
    sizes = data.draw(st.lists(st.integers(2, 12), min_size=1, max_size=6))
    order = data.draw(st.permutations(range(len(sizes))))
    clients = oracle.make_clients(sizes, K, seed=seed)
    alpha = weights(clients, covariance, centre=centre)
    assert (alpha >= 0).all()
    np.testing.assert_allclose(alpha.sum(1), 1, atol=1e-12)
    permuted = weights([clients[i] for i in order], covariance, centre=centre)
    np.testing.assert_allclose(permuted, alpha[np.ix_(order, order)], atol=1e-8)


def test_small_weights_are_cut_and_the_rest_fill_up():
    clients = oracle.make_clients(SIZES, K)
    whole, cut = weights(clients), weights(clients, cutoff=0.2)
    expected = np.where(whole < 0.2, 0, whole)
    assert (expected == 0).sum() > (whole == 0).sum()
    np.testing.assert_allclose(cut, expected / expected.sum(1, keepdims=True), atol=1e-12)


def test_the_cutoff_never_takes_everything():
    template = oracle.statistics_of(oracle.make_clients([12])[0], K, covariance=False)
    np.testing.assert_allclose(combination_weights([template] * 30, cutoff=0.1), np.full((30, 30), 1 / 30), rtol=1e-9)


def test_weights_minimise_what_theorem_1_expects_when_centred_on_the_server():
    clients = oracle.make_clients(SIZES, K, shift=2.0)
    mean = np.concatenate([z for z, _ in clients]).mean(0)
    raw = [(z - mean, y) for z, y in clients]
    for covariance in ("identity", "pooled", "local"):
        np.testing.assert_allclose(weights(clients, covariance, centre=True), weights(raw, covariance), atol=1e-9)
    statistics = [oracle.statistics_of(c, K) for c in clients]
    np.testing.assert_allclose(global_mean(statistics), mean)
    assert np.abs(weights(clients, centre=True) - weights(clients)).max() > 1e-3


def test_mistakes_name_the_client():
    clients = oracle.make_clients([5, 6, 7], K)
    good = [oracle.statistics_of(c, K, covariance=False) for c in clients]
    for name in ("means", "scatter"):
        tensors = good[1].to_tensors()
        tensors[name] = tensors[name] * torch.nan
        broken = [good[0], FeatureStatistics.from_tensors(tensors), good[2]]
        with pytest.raises(TrainingError, match="client 1 "):
            combination_weights(broken)
        with pytest.raises(TrainingError, match="client 42 "):
            combination_weights(broken, clients=[7, 42, 9])
    with pytest.raises(DataError, match=r"client 2 .*shape"):
        combination_weights([good[0], good[1], oracle.statistics_of(clients[2], K + 1, covariance=False)])
    with pytest.raises(DataError, match="client 0 did not send"):
        combination_weights(good, "pooled")
    nobody = FeatureStatistics(torch.zeros(K), torch.zeros(K, 3), torch.zeros(()))
    with pytest.raises(DataError, match="client 1 has no samples"):
        combination_weights([good[0], nobody])
    with pytest.raises(DataError, match="at least one"):
        combination_weights([])
    with pytest.raises(ConfigError, match="Did you mean 'local'"):
        combination_weights(good, "locale")
    flat = (np.ones((4, 3)), np.array([0, 1, 1, 2]))
    with pytest.raises(ConfigError, match="ridge"):
        weights([flat, flat], "local", ridge=0)
