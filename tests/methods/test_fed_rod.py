"""Fed-RoD against its equations written out by hand, and the bugs others made with it."""

import pytest
import torch
import torch.nn.functional as F

from fedpac.methods.fed_rod import FedRoD
from fedpac.methods.fedavg import FedAvg
from helpers import (
    CLASSES,
    FEATURES,
    assert_close,
    assert_equal,
    batches_of,
    literal_mean,
    run_federation,
    tiny_data,
    visit,
)

NAMES = ("body.0.weight", "body.0.bias", "head.weight", "head.bias")


def generic(finished):
    return {name: tensor for name, tensor in finished.server.weights("w").items() if name in NAMES}


def test_two_rounds_equal_the_literal_algorithm():
    """Two losses, two separate sets of parameters: nothing of the personal loss may reach body or generic head."""
    data = tiny_data()
    finished = run_federation(FedRoD(gamma=0.9), data=data)
    task = finished.task
    shared = dict(task.initial)
    own = [{"weight": task.initial["head.weight"], "bias": task.initial["head.bias"]} for _ in data]
    for t in (1, 2):
        trained = []
        for i, mine in enumerate(data):
            x, y = mine.train.tensors()
            log_n = 0.9 * torch.tensor([max((y == k).sum().item(), 1e-12) for k in range(CLASSES)]).log()
            w = {n: p.clone().requires_grad_() for n, p in shared.items()}
            h = {n: p.clone().requires_grad_() for n, p in own[i].items()}
            v = {n: torch.zeros_like(p) for n, p in {**w, **h}.items()}
            for index in batches_of(visit(task, data, i, t)):
                z = torch.tanh(F.linear(x[index], w["body.0.weight"], w["body.0.bias"]))
                g = F.linear(z, w["head.weight"], w["head.bias"])
                loss_g = F.cross_entropy(g + log_n, y[index])
                grads = dict(zip(w, torch.autograd.grad(loss_g, list(w.values())), strict=True))
                loss_h = F.cross_entropy(g.detach() + F.linear(z.detach(), h["weight"], h["bias"]), y[index])
                grads |= dict(zip(h, torch.autograd.grad(loss_h, list(h.values())), strict=True))
                with torch.no_grad():
                    for n, p in {**w, **h}.items():
                        v[n] = 0.5 * v[n] + grads[n] + 0.01 * p
                        p -= 0.05 * v[n]
            trained.append({n: p.detach() for n, p in w.items()})
            own[i] = {n: p.detach() for n, p in h.items()}
        shared = literal_mean(trained, [len(mine.train) for mine in data])
    assert_close(finished.server.weights("w"), shared)
    for i in range(len(data)):
        assert_close(finished.states[i]["own"], {f"personal.{n}": p for n, p in own[i].items()})


def test_with_equally_frequent_classes_the_generic_branch_is_fedavg():
    data = tiny_data((8, 4, 12), [[0, 1, 2, 3]] * 3)
    assert_equal(generic(run_federation(FedRoD(), data=data)), run_federation(FedAvg(), data=data).server.weights("w"))


def test_without_balancing_the_generic_branch_is_fedavg():
    assert_equal(generic(run_federation(FedRoD(gamma=0))), run_federation(FedAvg()).server.weights("w"))


def test_the_generic_branch_knows_nothing_of_the_personal_one():
    assert_equal(generic(run_federation(FedRoD())), generic(run_federation(FedRoD(variant="hyper"))))


def test_prediction_is_the_sum_of_both_heads_without_the_prior():
    data = tiny_data()
    finished = run_federation(FedRoD(), data=data)
    w, own = finished.server.weights("w"), finished.states[1]["own"]
    client = visit(finished.task, data, 1, 3, finished.states[1])
    model = FedRoD().received(client, FedRoD().send(finished.server, 1)).eval()
    x, _ = client.test_set
    z = torch.tanh(F.linear(x, w["body.0.weight"], w["body.0.bias"]))
    by_hand = F.linear(z, w["head.weight"], w["head.bias"]) + F.linear(z, own["personal.weight"], own["personal.bias"])
    torch.testing.assert_close(model(x), by_hand)


def test_a_hyper_network_makes_the_head_from_class_frequencies():
    data = tiny_data()
    method = FedRoD(variant="hyper", hidden=7)
    finished = run_federation(method, data=data)
    w = finished.server.weights("w")
    assert finished.states == {}
    client = visit(finished.task, data, 1, 3)  # nothing of its own: it might never have taken part
    model = method.received(client, method.send(finished.server, 1)).eval()
    x, y = client.train_set
    a = torch.tensor([(y == k).float().mean() for k in range(CLASSES)])
    hidden = torch.relu(w["personal.net.0.weight"] @ a + w["personal.net.0.bias"])
    made = w["personal.net.2.weight"] @ hidden + w["personal.net.2.bias"]
    weight, bias = made[: CLASSES * FEATURES].view(CLASSES, FEATURES), made[CLASSES * FEATURES :]
    z = torch.tanh(F.linear(x, w["body.0.weight"], w["body.0.bias"]))
    torch.testing.assert_close(model(x), F.linear(z, w["head.weight"], w["head.bias"]) + F.linear(z, weight, bias))
    before = run_federation(method, rounds=1, data=data).server.weights("w")
    assert not torch.equal(before["personal.net.0.weight"], w["personal.net.0.weight"])  # it learns


@pytest.mark.parametrize("variant", ["linear", "hyper"])
def test_absent_classes_and_a_single_sample_give_finite_losses(variant):
    data = tiny_data((1, 5), [[0], [2, 2, 2, 2, 1]])
    finished = run_federation(FedRoD(variant=variant), data=data, epochs=10)
    assert all(s.loss < 50 for s in finished.reports[-1].scores)


def test_a_client_without_a_personal_head_predicts_with_the_generic_one():
    data = tiny_data()
    finished = run_federation(FedRoD(), rounds=1, data=data)
    down = FedRoD().send(finished.server, 0)
    model = FedRoD().received(visit(finished.task, data, 0, 2), down)
    x, _ = data[0].test.tensors()
    assert torch.equal(model(x), FedAvg().received(visit(finished.task, data, 0, 2), down)(x))
