"""FedAMP against its equations."""

import math

import torch
import torch.nn.functional as F

from fedpac.methods.fedamp import FedAMP
from fedpac.methods.local import Local
from fedpac.models import copy_with
from helpers import assert_close, assert_equal, batches_of, literal_sgd, run_federation, tiny_data, tiny_task, visit


def flat(w):
    return torch.cat([t.flatten() for t in w.values()])


def literal_mean(models, i, alpha, sigma):
    near = {
        j: alpha / sigma * math.exp(-float((flat(models[i]).double() - flat(w).double()).square().sum()) / sigma)
        for j, w in enumerate(models)
        if j != i
    }
    total = sum(near.values())
    xi = {j: weight / max(total, 1) for j, weight in near.items()}
    xi[i] = 1 - sum(xi.values())
    return {name: sum(xi[j] * models[j][name] for j in xi) for name in models[i]}, xi


def literal_rounds(data, rounds, alpha, sigma, lam):
    task = tiny_task(len(data))
    own, sent = [task.initial] * len(data), [task.initial] * len(data)
    for t in range(1, rounds + 1):
        for i, samples in enumerate(data):
            x, y = samples.train.tensors()
            anchor = flat(sent[i])

            def loss(model, xb, yb, anchor=anchor):
                w = torch.cat([p.flatten() for p in model.parameters()])
                return F.cross_entropy(model(xb), yb) + lam / (2 * alpha) * (w - anchor).square().sum()

            own[i] = literal_sgd(copy_with(task.model, own[i]), x, y, batches_of(visit(task, data, i, t)), loss=loss)
        sent = [literal_mean(own, i, alpha, sigma)[0] for i in range(len(data))]
    return sent


def test_three_rounds_equal_the_literal_algorithm():
    data = tiny_data()
    for alpha, sigma, lam in ((1.0, 10.0, 1.0), (0.5, 0.3, 0.7), (20.0, 2.0, 5.0)):
        sent = literal_rounds(data, 3, alpha, sigma, lam)
        run = run_federation(FedAMP(alpha=alpha, sigma=sigma, lam=lam), data=data, rounds=3)
        for i in range(len(data)):
            assert_close(run.server.weights(f"u.{i}"), sent[i])


def test_nobody_gets_a_negative_weight():
    run = run_federation(FedAMP(alpha=1e6, sigma=1e3), rounds=1)
    rows = FedAMP().peer_weights(run.server)
    assert all(0 <= weight <= 1 for _, _, weight in rows)
    for i in range(4):
        assert math.isclose(sum(weight for k, _, weight in rows if k == i), 1)
        assert sum(weight for k, j, weight in rows if k == i and j != i) > 0.99


def test_strangers_are_ignored():
    """At a distance of many sigma, every client gets its own model back."""
    data = tiny_data()
    run = run_federation(FedAMP(sigma=1e-9), data=data, rounds=1)
    assert {(i, j) for i, j, _ in FedAMP().peer_weights(run.server)} == {(i, i) for i in range(4)}


def test_without_the_pull_it_is_local_only():
    run, alone = (run_federation(method, rounds=3) for method in (FedAMP(lam=0, sigma=1e-9), Local()))
    for i, state in alone.states.items():
        assert_equal(run.states[i]["w"], state["own"])


def test_an_absent_client_keeps_its_model():
    data = tiny_data()
    task, method = tiny_task(len(data)), FedAMP()
    run = run_federation(method, data=data, rounds=1)
    before = run.server.weights("u.2")
    method.merge(run.server, {i: method.local(visit(task, data, i, 2), method.send(run.server, i)) for i in (0, 1)})
    assert_equal(run.server.weights("u.2"), before)
