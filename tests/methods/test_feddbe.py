"""FedDBE against its equations."""

import torch
import torch.nn.functional as F
from torch import nn

from fedpac.methods.fedavg import FedAvg
from fedpac.methods.feddbe import FedDBE
from fedpac.models import copy_with
from helpers import (
    FEATURES,
    assert_close,
    assert_equal,
    batches_of,
    literal_mean,
    literal_sgd,
    literal_training,
    run_federation,
    tiny_data,
    tiny_task,
    visit,
)


class WithShift(nn.Module):
    """Body, head and a vector, written once more."""

    def __init__(self, model, shift):
        super().__init__()
        self.body, self.head, self.shift = model.body, model.head, nn.Parameter(shift.clone())

    def forward(self, x):
        return self.head(self.body(x) + self.shift)


def literal_dbe(data, rounds, kappa, momentum):
    task, sizes = tiny_task(len(data), rounds), [len(own.train) for own in data]
    w, shifts, common = task.initial, [torch.zeros(FEATURES) for _ in data], None
    for t in range(1, rounds + 1):
        trained, means = [], []
        for i, own in enumerate(data):
            x, y = own.train.tensors()
            if common is None:
                trained.append(literal_training(task, data, i, t, w))
                means.append(copy_with(task.model, trained[-1]).body(x).detach().mean(0))
                continue
            running = torch.zeros(FEATURES)

            def loss(model, xb, yb, common=common):
                nonlocal running
                z = model.body(xb)
                now = (1 - momentum) * running + momentum * z.mean(0)
                running = now.detach()
                pull = sum(0.5 * (a - b) ** 2 for a, b in zip(now, common, strict=True)) / FEATURES
                return F.cross_entropy(model.head(z + model.shift), yb) + kappa * pull

            model = WithShift(copy_with(task.model, w), shifts[i])
            after = literal_sgd(model, x, y, batches_of(visit(task, data, i, t)), loss=loss)
            shifts[i] = after.pop("shift")
            trained.append(after)
        w = literal_mean(trained, sizes)
        if common is None:
            common = sum(n * mean for n, mean in zip(sizes, means, strict=True)) / sum(sizes)
    return w, shifts, common


def test_three_rounds_equal_the_literal_algorithm():
    data, method = tiny_data(), FedDBE(kappa=3.0, momentum=0.7)
    run = run_federation(method, data=data, rounds=3)
    w, shifts, common = literal_dbe(data, 3, 3.0, 0.7)
    assert_close(run.server.weights("w"), w)
    torch.testing.assert_close(run.server.tensor("mean"), common, rtol=1e-5, atol=1e-6)
    for i, shift in enumerate(shifts):
        torch.testing.assert_close(run.states[i]["shift"], shift, rtol=1e-4, atol=2e-6)
    client, down = visit(run.task, data, 1, 4, run.states[1]), method.send(run.server, 1)
    x = data[1].test.tensors()[0]
    expected = WithShift(copy_with(run.task.model, w), shifts[1])(x)
    torch.testing.assert_close(method.received(client, down)(x), expected, rtol=1e-4, atol=1e-5)


def test_the_first_round_is_fedavgs_and_the_common_mean_then_stays():
    one, three = run_federation(FedDBE(), rounds=1), run_federation(FedDBE(), rounds=3)
    assert_equal(one.server.weights("w"), run_federation(FedAvg(), rounds=1).server.weights("w"))
    assert torch.equal(one.server.tensor("mean"), three.server.tensor("mean"))


def test_both_halves_of_the_method_are_on_by_default():
    """Public defaults of kappa = 0 leave the pull out."""
    default, without = run_federation(FedDBE(), rounds=2), run_federation(FedDBE(kappa=0), rounds=2)
    assert default.bytes()["server"] != without.bytes()["server"]
    assert all(float(state["shift"].norm()) > 0 for state in default.states.values())


def test_a_shift_never_leaves_its_client():
    data, method = tiny_data(), FedDBE()
    run = run_federation(method, data=data, rounds=2)
    up = method.local(visit(run.task, data, 0, 3, run.states[0]), method.send(run.server, 0))
    assert set(up) == {"w", "n"}
    assert set(up.weights("w")) == set(run.task.initial)
