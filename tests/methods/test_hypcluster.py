"""HypCluster against its equations and FedAvg."""

import pytest
import torch
import torch.nn.functional as F

from fedpac.errors import ConfigError
from fedpac.methods.fedavg import FedAvg
from fedpac.methods.hypcluster import HypCluster
from fedpac.models import Classifier, copy_with, weights_of
from helpers import (
    assert_close,
    assert_equal,
    batches_of,
    literal_mean,
    literal_sgd,
    run_federation,
    tiny_data,
    tiny_model,
    tiny_task,
    visit,
)


def test_three_rounds_equal_the_literal_algorithm():
    data = tiny_data()
    task = tiny_task(len(data), 3)
    start = run_federation(HypCluster(), data=data, rounds=1).federation
    start.method.setup(start.server)
    w = [start.server.weights(f"w{c}") for c in range(3)]
    chosen = set()
    for t in (1, 2, 3):
        trained = {0: [], 1: [], 2: []}
        for i, own in enumerate(data):
            x, y = own.train.tensors()
            losses = [F.cross_entropy(copy_with(task.model, each)(x), y).item() for each in w]
            z = losses.index(min(losses))
            chosen.add(z)
            batches = batches_of(visit(task, data, i, t))
            trained[z].append((literal_sgd(copy_with(task.model, w[z]), x, y, batches), len(y)))
        for z, answers in trained.items():
            if answers:
                w[z] = literal_mean([a for a, _ in answers], [n for _, n in answers])
    assert len(chosen) > 1
    run = run_federation(HypCluster(), data=data, rounds=3)
    for c in range(3):
        assert_close(run.server.weights(f"w{c}"), w[c])


@pytest.mark.parametrize("init", ["random", "farthest"])
@pytest.mark.parametrize("model", ["plain", "norm"])
def test_one_cluster_is_fedavg(init, model):
    one = run_federation(HypCluster(k=1, init=init), model=tiny_model(model), participation=0.5)
    fedavg = run_federation(FedAvg(), model=tiny_model(model), participation=0.5)
    assert_equal(one.server.weights("w0"), fedavg.server.weights("w"))
    assert [r.scores for r in one.reports] == [r.scores for r in fedavg.reports]


def test_clusters_start_apart_and_one_that_nobody_chose_stays():
    data = tiny_data(sizes=(6,))
    run = run_federation(HypCluster(k=4), data=data, rounds=1)
    task = run.task
    fresh = run_federation(HypCluster(k=4), data=data, rounds=1).federation
    fresh.method.setup(fresh.server)
    start = [fresh.server.weights(f"w{c}") for c in range(4)]
    assert_equal(start[0], task.initial)
    for a in range(4):
        for b in range(a):
            assert not torch.equal(start[a]["head.weight"], start[b]["head.weight"])
    changed = [c for c in range(4) if not torch.equal(run.server.weights(f"w{c}")["head.bias"], start[c]["head.bias"])]
    assert len(changed) == 1


def test_the_cluster_is_chosen_on_training_data():
    data = tiny_data(sizes=(12,))
    task = tiny_task(1)
    x, y = data[0].train.tensors()
    swapped = torch.tensor([1, 0, 2, 3])
    good = literal_sgd(copy_with(task.model, task.initial), x, y, [torch.arange(12)] * 60)
    bad = literal_sgd(copy_with(task.model, task.initial), x, swapped[y], [torch.arange(12)] * 60)
    # the test labels would say `bad`
    data = tiny_data(sizes=(12,))
    object.__setattr__(data[0].test, "relabel", swapped)
    federation = run_federation(HypCluster(k=2), data=data, rounds=1).federation
    federation.server.state.update(w0=bad, w1=good)
    down = HypCluster(k=2).send(federation.server, 0)
    assert_equal(weights_of(HypCluster(k=2).received(visit(task, data, 0), down)), good)


def test_the_farthest_start_separates_clients_whose_labels_are_permuted():
    shift = torch.tensor([1, 2, 0, 3])
    data = tiny_data(sizes=(12,) * 4, classes_of=[[0, 1, 2]] * 4, relabel=[None, shift, None, shift])
    run = run_federation(HypCluster(k=2, init="farthest"), data=data, rounds=12)
    down = HypCluster(k=2).send(run.server, 0)
    assert len(down) == 2
    z = [HypCluster(k=2).choose(visit(run.task, data, i), down)[0] for i in range(4)]
    assert z[0] == z[2] != z[1] == z[3]


def test_a_model_that_cannot_be_drawn_anew_is_named():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(6, 4))

        def forward(self, x):
            return x @ self.scale

    with pytest.raises(ConfigError, match="reset_parameters"):
        run_federation(HypCluster(), model=Classifier(torch.nn.Flatten(), Own()), rounds=1)
