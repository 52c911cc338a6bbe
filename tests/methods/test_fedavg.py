"""FedAvg against SGD and averaging written out by hand."""

import torch

from fedpac.methods.fedavg import FedAvg
from fedpac.models import copy_with
from fedpac.server import average
from helpers import assert_close, batches_of, literal_mean, literal_sgd, run_federation, tiny_data, tiny_task, visit


def test_two_rounds_equal_the_literal_algorithm():
    data = tiny_data()
    task = tiny_task(len(data))
    w = task.initial
    for t in (1, 2):
        trained = []
        for i, own in enumerate(data):
            batches = batches_of(visit(task, data, i, t))
            trained.append(literal_sgd(copy_with(task.model, w), *own.train.tensors(), batches))
        w = literal_mean(trained, [len(own.train) for own in data])
    assert_close(run_federation(FedAvg(), data=data).server.weights("w"), w)


def test_the_small_last_batch_is_kept_and_so_is_a_client_smaller_than_a_batch():
    data = tiny_data(sizes=(7, 2))
    task = tiny_task(2)
    seen = batches_of(visit(task, data, 0), epochs=1)
    assert sorted(torch.cat(seen).tolist()) == list(range(7))
    assert [len(b) for b in seen] == [4, 3]
    client = visit(task, data, 1)
    up = FedAvg().local(client, FedAvg().send(run_federation(FedAvg(), data=data).server, 1))
    before = run_federation(FedAvg(), data=data).server.weights("w")
    assert any(not torch.equal(before[name], tensor) for name, tensor in up.weights("w").items())


def test_the_average_weighs_by_samples_and_leaves_integers_alone():
    weights = {
        0: {"w": torch.tensor([0.0]), "steps": torch.tensor(5)},
        1: {"w": torch.tensor([4.0]), "steps": torch.tensor(8)},
    }
    mean = average(weights, {0: 1.0, 1: 3.0})
    assert mean["w"].item() == 3.0
    assert mean["steps"].dtype == torch.int64
    assert mean["steps"].item() == 5
