"""APFL against its equations, Local-only and FedAvg."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedpac.methods.apfl import APFL
from fedpac.methods.fedavg import FedAvg
from fedpac.methods.local import Local
from fedpac.models import weights_of
from helpers import (
    RECIPE,
    assert_close,
    assert_equal,
    batches_of,
    literal_mean,
    run_federation,
    tiny_data,
    tiny_model,
    tiny_task,
    visit,
)


def slope(model, weights, x, y):
    """The gradient of F at these weights."""
    leaves = {name: p.detach().requires_grad_() for name, p in weights.items()}
    gradient = torch.autograd.grad(F.cross_entropy(functional_call(model, leaves, (x,)), y), list(leaves.values()))
    return dict(zip(leaves, gradient, strict=True))


@pytest.mark.parametrize("adaptive", [False, True])
def test_two_rounds_equal_the_literal_algorithm(adaptive):
    data = tiny_data()
    task = tiny_task(len(data))
    lr, momentum, decay = RECIPE["lr"], RECIPE["momentum"], RECIPE["weight_decay"]
    w, v, alpha = task.initial, [dict(task.initial) for _ in data], [0.25] * len(data)
    for t in (1, 2):
        trained = []
        for i, own in enumerate(data):
            x, y = own.train.tensors()
            wi, speed_w, speed_v = dict(w), dict.fromkeys(w, 0.0), dict.fromkeys(w, 0.0)
            for index in batches_of(visit(task, data, i, t)):
                a, batch = alpha[i], (x[index], y[index])
                at_w = slope(task.model, wi, *batch)
                at_mixed = slope(task.model, {n: a * v[i][n] + (1 - a) * wi[n] for n in wi}, *batch)
                if adaptive:
                    inner = sum(float(((v[i][n] - wi[n]) * at_mixed[n]).sum()) for n in wi)
                    alpha[i] = min(1.0, max(0.0, a - lr * inner))
                for n in wi:
                    speed_w[n] = momentum * speed_w[n] + at_w[n] + decay * wi[n]
                    speed_v[n] = momentum * speed_v[n] + a * at_mixed[n] + decay * v[i][n]
                    wi[n], v[i][n] = wi[n] - lr * speed_w[n], v[i][n] - lr * speed_v[n]
            trained.append(wi)
        w = literal_mean(trained, [len(own.train) for own in data])
    run = run_federation(APFL(adaptive=adaptive), data=data)
    assert_close(run.server.weights("w"), w)
    for i in range(len(data)):
        assert_close(run.states[i]["v"], v[i])
        if adaptive:
            assert run.states[i]["alpha"] == pytest.approx(alpha[i], abs=1e-5)
            assert alpha[i] != 0.25


@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_all_personal_is_local_only(model, participation):
    apfl = run_federation(APFL(alpha=1), model=tiny_model(model), participation=participation)
    local = run_federation(Local(), model=tiny_model(model), participation=participation)
    for i, state in local.states.items():
        assert_equal(apfl.states[i]["v"], state["own"])
    assert [r.scores for r in apfl.reports] == [r.scores for r in local.reports]


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_all_global_is_fedavg(model):
    apfl = run_federation(APFL(alpha=0), model=tiny_model(model), participation=0.5)
    fedavg = run_federation(FedAvg(), model=tiny_model(model), participation=0.5)
    assert [r.scores for r in apfl.reports] == [r.scores for r in fedavg.reports]


def test_the_global_model_is_stepped_once_on_each_batch():
    """In one public implementation it is stepped twice; whatever alpha is, it must be FedAvg's."""
    apfl = run_federation(APFL(alpha=0.7), rounds=3)
    assert_equal(apfl.server.weights("w"), run_federation(FedAvg(), rounds=3).server.weights("w"))


def test_it_predicts_with_the_mixture():
    data = tiny_data()
    run = run_federation(APFL(), data=data)
    down = APFL().send(run.server, 0)
    used = weights_of(APFL().received(visit(run.task, data, 0, 3, run.states[0]), down))
    v, w = run.states[0]["v"], run.server.weights("w")
    assert_close(used, {name: 0.25 * v[name] + 0.75 * w[name] for name in w})
    assert not torch.equal(v["head.bias"], used["head.bias"])  # and v itself is not overwritten by the mixture


def test_a_learned_share_is_kept_between_zero_and_one():
    run = run_federation(APFL(alpha=0.9, adaptive=True), rounds=6, lr=0.5)
    shares = [state["alpha"] for state in run.states.values()]
    assert all(0 <= share <= 1 for share in shares)
    assert len(set(shares)) > 1
