"""Federations that do not fit into one message: what is kept is what took part, and what is sent is sent in pieces."""

import pytest
import torch

from fedpac import federation
from fedpac.collaboration import weights
from fedpac.collaboration.statistics import FeatureStatistics
from fedpac.errors import ConfigError
from fedpac.methods import fedavg, list_methods, make_method
from fedpac.methods.fedfomo import MOST_CLIENTS
from fedpac.server import Server
from fedpac.weights import average_of
from helpers import assert_close, run_federation, tiny_data, tiny_task


@pytest.mark.parametrize("name", list_methods())
def test_a_round_in_pieces_is_the_same_round(name, monkeypatch):
    """Up to rounding for methods whose replies are averaged as they come, and to the bit for all others."""
    data = tiny_data(sizes=(5,) * 7)
    whole = run_federation(make_method(name), rounds=2, data=data)
    monkeypatch.setattr(federation, "CHUNK", 3)
    pieces = run_federation(make_method(name), rounds=2, data=data)
    assert [(s.client, s.which) for r in pieces.reports for s in r.scores] == [
        (s.client, s.which) for r in whole.reports for s in r.scores
    ]
    assert [(r.bytes_up, r.bytes_down) for r in pieces.reports] == [(r.bytes_up, r.bytes_down) for r in whole.reports]
    for part, value in whole.server.state.items():
        if isinstance(value, dict):
            assert_close(pieces.server.weights(part), value)


def test_thousands_of_replies_are_never_in_memory_at_once(monkeypatch):
    monkeypatch.setattr(federation, "CHUNK", 3)
    merged = []

    def counted(replies, name):
        merged.append(len(replies))
        return average_of(replies, name)

    monkeypatch.setattr(fedavg, "average_of", counted)
    run_federation(make_method("fedavg"), rounds=1, data=tiny_data(sizes=(5,) * 8))
    assert merged == [3, 3, 2, 3]  # three pieces, and one reply that stands for each


def test_fedpac_keeps_the_weights_of_those_who_took_part():
    data = tiny_data(sizes=(5,) * 8)
    finished = run_federation(make_method("fedpac"), rounds=2, data=data, participation=0.25)
    assert finished.server.tensor("alpha").shape[1] == 3
    assert len(finished.server.tensor("alpha")) < 64
    assert {i for i, _, _ in finished.reports[0].peer_weights} == set(finished.reports[0].chosen)


def test_more_clients_than_a_solve_can_hold_are_refused_with_advice(monkeypatch):
    monkeypatch.setattr(weights, "MOST_CLIENTS", 2)
    one = FeatureStatistics(torch.tensor([1, 1]), torch.ones(2, 3, dtype=torch.float64), torch.tensor(1.0).double())
    with pytest.raises(ConfigError, match=r"run.everybody_last = false"):
        weights.combination_weights([one] * 3)


def test_fedfomo_says_how_many_clients_it_is_for():
    task = tiny_task(MOST_CLIENTS + 1)
    with pytest.raises(ConfigError, match="an affinity for every pair of clients"):
        make_method("fedfomo").setup(Server(task))
