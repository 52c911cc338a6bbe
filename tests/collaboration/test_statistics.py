import numpy as np
import oracle
import pytest
import torch

from fedpac.collaboration import FeatureStatistics, feature_statistics, global_mean
from fedpac.errors import DataError
from fedpac.message import Message

K = 4


@pytest.fixture(params=[[9], [1], [30, 2]])
def clients(request):
    return oracle.make_clients(request.param, K)


def test_equal_the_papers_loops(clients):
    for client in clients:
        s = oracle.statistics_of(client, K)
        assert s.counts.tolist() == [int((client[1] == y).sum()) for y in range(K)]
        for y in range(K):
            np.testing.assert_allclose(s.means[y], oracle.class_mean(client, y), atol=1e-14)
            np.testing.assert_allclose(s.h[y], oracle.h(client, y), atol=1e-14)
        np.testing.assert_allclose(s.second_moment, oracle.second_moment(client), atol=1e-13)
        np.testing.assert_allclose(s.V, oracle.variance(client, K, np.eye(3)), atol=1e-12)
        np.testing.assert_allclose(s.V, s.second_moment.trace() - s.h.square().sum(), atol=1e-12)
        assert s.n == len(client[1])


def test_the_trace_alone_gives_the_same_variance(clients):
    for client in clients:
        brief = oracle.statistics_of(client, K, covariance=False)
        assert brief.scatter.ndim == 0
        np.testing.assert_allclose(brief.V, oracle.statistics_of(client, K).V, rtol=1e-13)


def test_float32_features_are_added_up_in_float64():
    z = torch.full((100_001, 1), 0.1)
    s = feature_statistics(z, torch.zeros(len(z), dtype=torch.long), 1)
    assert s.means.dtype == torch.float64
    assert abs(float(s.means) - float(z[0])) < 1e-12


def test_variance_survives_a_large_mean():
    """tr Λ - |h|² computed as written would lose all digits: 1e20 minus 1e20."""
    deviations = torch.tensor([[-1.0], [1.0], [3.0], [-3.0]], dtype=torch.float64)
    s = feature_statistics(deviations + 1e10, torch.zeros(4, dtype=torch.long), 1)
    np.testing.assert_allclose(s.V, 5.0, rtol=1e-9)


def test_one_sample_has_no_variance():
    s = feature_statistics(torch.randn(1, 7), torch.tensor([2]), 3)
    assert s.V == 0.0


@pytest.mark.parametrize("covariance", [True, False])
def test_centring_statistics_is_centring_features(covariance):
    clients = oracle.make_clients([12, 5, 1], K, shift=3.0)
    everything = np.concatenate([z for z, _ in clients])
    statistics = [oracle.statistics_of(c, K, covariance) for c in clients]
    origin = global_mean(statistics)
    np.testing.assert_allclose(origin, everything.mean(0), atol=1e-13)
    for s, (z, y) in zip(statistics, clients, strict=True):
        expected = oracle.statistics_of((z - everything.mean(0), y), K, covariance)
        moved = s.centred(origin)
        np.testing.assert_allclose(moved.means, expected.means, atol=1e-13)
        np.testing.assert_allclose(moved.V, expected.V, atol=1e-12)
        if covariance:
            np.testing.assert_allclose(moved.second_moment, expected.second_moment, atol=1e-12)
    np.testing.assert_allclose(global_mean([s.centred(origin) for s in statistics]), 0, atol=1e-13)


def test_travel_in_a_message():
    s = oracle.statistics_of(oracle.make_clients([6])[0])
    message = Message.from_bytes(Message(statistics=s.to_tensors()).to_bytes())
    back = FeatureStatistics.from_tensors(message.weights("statistics"))
    for name, tensor in s.to_tensors().items():
        assert torch.equal(back.to_tensors()[name], tensor)


def test_mistakes_are_named():
    z = torch.zeros(3, 2)
    with pytest.raises(DataError, match="without samples"):
        feature_statistics(z[:0], torch.zeros(0, dtype=torch.long), 2)
    with pytest.raises(DataError, match=r"0\.\.1, got 0\.\.2"):
        feature_statistics(z, torch.tensor([0, 1, 2]), 2)
    with pytest.raises(DataError, match=r"-1\.\.0"):
        feature_statistics(z, torch.tensor([0, -1, 0]), 2)
    with pytest.raises(DataError, match="labels"):
        feature_statistics(z, torch.tensor([0, 1]), 2)
    with pytest.raises(DataError, match="covariance=True"):
        _ = feature_statistics(z, torch.tensor([0, 1, 1]), 2).second_moment
