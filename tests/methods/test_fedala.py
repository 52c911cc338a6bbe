"""FedALA against its equations, and FedAvg where nothing is mixed."""

import pytest
import torch
import torch.nn.functional as F

from fedpac.methods.fedala import FedALA
from fedpac.methods.fedavg import FedAvg
from fedpac.models import copy_with
from helpers import (
    assert_close,
    assert_equal,
    literal_mean,
    literal_training,
    run_federation,
    tiny_data,
    tiny_model,
    tiny_task,
    visit,
)

TOP = ["head.weight", "head.bias"]


def literal_mix(method, task, data, i, t, own, w, mask):
    """W element by element, with the gradient of each batch at the model that the last one left."""
    x, y = data[i].train.tensors()
    first = mask is None
    mask = {name: torch.ones_like(w[name]) for name in TOP} if first else mask
    losses = []
    while True:
        for index in method.batches(visit(task, data, i, t), len(losses)):
            start = {**w, **{name: own[name] + (w[name] - own[name]) * mask[name] for name in TOP}}
            model = copy_with(task.model, start)
            loss = F.cross_entropy(model(x[index]), y[index])
            loss.backward()
            for name in TOP:
                slope = dict(model.named_parameters())[name].grad * (w[name] - own[name])
                mask[name] = (mask[name] - method.eta * slope).clamp(0, 1)
        losses.append(float(loss.detach()))
        last = torch.tensor(losses[-10:])
        if not first or len(losses) == method.most_epochs or (len(losses) > 10 and last.std(correction=0) < 0.1):
            return {**w, **{name: own[name] + (w[name] - own[name]) * mask[name] for name in TOP}}, mask


@pytest.mark.parametrize("eta", [1.0, 30.0])
def test_three_rounds_equal_the_literal_algorithm(eta):
    data, method = tiny_data(), FedALA(eta=eta)
    task = tiny_task(len(data), 3)
    w, own, masks = task.initial, [None] * len(data), [None] * len(data)
    for t in (1, 2, 3):
        for i in range(len(data)):
            start = w
            if own[i] is not None:
                start, masks[i] = literal_mix(method, task, data, i, t, own[i], w, masks[i])
            own[i] = literal_training(task, data, i, t, start)
        w = literal_mean(own, [len(part.train) for part in data])
    run = run_federation(method, data=data, rounds=3)
    assert_close(run.server.weights("w"), w)
    for i in range(len(data)):
        assert_close(run.states[i]["theta"], own[i])
        torch.testing.assert_close(run.states[i]["mask"], masks[i], rtol=1e-3, atol=1e-4)
    assert any((mask[name] < 1).any() for mask in masks for name in TOP)


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_without_top_layers_it_is_fedavg(model):
    """Not all of the layers, as params[-0:] has it in public code."""
    ala = run_federation(FedALA(layers=0), model=tiny_model(model), participation=0.5, rounds=3)
    fedavg = run_federation(FedAvg(), model=tiny_model(model), participation=0.5, rounds=3)
    assert_equal(ala.server.weights("w"), fedavg.server.weights("w"))
    assert [r.scores for r in ala.reports] == [r.scores for r in fedavg.reports]


def test_only_the_top_layers_are_mixed():
    data, method = tiny_data(), FedALA(eta=30.0)
    run = run_federation(method, data=data, rounds=2)
    client = visit(run.task, data, 1, 3, run.states[1])
    w = run.server.weights("w")
    start, mask = method.mixed(client, w)
    assert set(mask) == set(TOP)
    assert_equal({name: start[name] for name in w if name not in TOP}, {n: t for n, t in w.items() if n not in TOP})
    own = run.states[1]["theta"]["head.weight"]
    low, high = torch.minimum(own, w["head.weight"]), torch.maximum(own, w["head.weight"])
    assert ((start["head.weight"] >= low - 1e-6) & (start["head.weight"] <= high + 1e-6)).all()


def test_a_newcomer_starts_from_the_global_model():
    data = tiny_data()
    run = run_federation(FedALA(), data=data, rounds=2)
    start, mask = FedALA().mixed(visit(run.task, data, 0, 3), run.server.weights("w"))
    assert mask == {}
    assert_equal(start, run.server.weights("w"))
