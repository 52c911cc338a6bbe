"""MOON against its equations, and FedAvg without its contrast."""

import pytest
import torch
import torch.nn.functional as F

from fedpac.methods.fedavg import FedAvg
from fedpac.methods.moon import MOON
from fedpac.models import copy_with
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
    data, mu, tau = tiny_data(), 0.7, 0.4
    task = tiny_task(len(data), 3)
    w, last = task.initial, [None] * len(data)
    for t in (1, 2, 3):
        for i, own in enumerate(data):
            x, y = own.train.tensors()
            received = copy_with(task.model, w)
            before = None if last[i] is None else copy_with(task.model, last[i])

            def loss(model, xb, yb, received=received, before=before):
                value = F.cross_entropy(model(xb), yb)
                if before is None:
                    return value
                for one in xb:
                    z, near, far = (m.body(one[None])[0] for m in (model, received, before))
                    a, b = (torch.exp(F.cosine_similarity(z, f.detach(), dim=0) / tau) for f in (near, far))
                    value = value - mu * torch.log(a / (a + b)) / len(xb)
                return value

            batches = batches_of(visit(task, data, i, t))
            last[i] = literal_sgd(copy_with(task.model, w), x, y, batches, loss=loss)
        w = literal_mean(last, [len(own.train) for own in data])
    run = run_federation(MOON(mu=mu, tau=tau), data=data, rounds=3)
    assert_close(run.server.weights("w"), w)


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_without_its_contrast_it_is_fedavg(model):
    moon = run_federation(MOON(mu=0), model=tiny_model(model), participation=0.5, rounds=3)
    fedavg = run_federation(FedAvg(), model=tiny_model(model), participation=0.5, rounds=3)
    assert_equal(moon.server.weights("w"), fedavg.server.weights("w"))
    assert [r.scores for r in moon.reports] == [r.scores for r in fedavg.reports]


def test_the_last_model_is_the_clients_own_and_not_the_average():
    run = run_federation(MOON(), rounds=2)
    kept = [state["last"]["head.weight"] for state in run.states.values()]
    assert not any(torch.equal(one, run.server.weights("w")["head.weight"]) for one in kept)
