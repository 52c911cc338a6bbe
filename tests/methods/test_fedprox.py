"""FedProx against its algorithm written out by hand."""

import torch

from fedpac.methods.fedavg import FedAvg
from fedpac.methods.fedprox import FedProx
from helpers import assert_close, assert_equal, literal_mean, literal_training, run_federation, tiny_data, tiny_task


def test_two_rounds_equal_the_literal_algorithm():
    """Decay pulls to zero, the proximal term to the received model; both go through momentum."""
    data = tiny_data()
    task = tiny_task(len(data))
    w = task.initial
    for t in (1, 2):
        trained = [
            literal_training(task, data, i, t, w, correct=lambda name, p, g, w=w: g + 0.7 * (p - w[name]))
            for i in range(len(data))
        ]
        w = literal_mean(trained, [len(own.train) for own in data])
    assert_close(run_federation(FedProx(mu=0.7), data=data).server.weights("w"), w)


def test_without_the_pull_it_is_fedavg():
    one, other = run_federation(FedProx(mu=0)), run_federation(FedAvg())
    assert_equal(one.server.weights("w"), other.server.weights("w"))
    assert one.scores() == other.scores()


def test_its_default_is_not_fedavg():
    one, other = run_federation(FedProx()), run_federation(FedAvg())
    assert not torch.equal(one.server.weights("w")["body.0.weight"], other.server.weights("w")["body.0.weight"])
