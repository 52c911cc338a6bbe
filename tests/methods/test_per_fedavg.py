"""Per-FedAvg against its equations, in first and second order."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedpac.methods.per_fedavg import PerFedAvg, after_a_step
from fedpac.models import copy_with, weights_of
from fedpac.training import Batch
from helpers import assert_close, batches_of, literal_mean, literal_sgd, run_federation, tiny_data, tiny_task, visit


def adapted_loss(model, xb, yb, alpha):
    """The loss after the step, of a model that holds the stepped weights; its gradient is the first-order one."""
    half, rest = (len(yb) // 2, len(yb) // 2) if len(yb) >= 4 else (len(yb), 0)
    first = torch.autograd.grad(F.cross_entropy(model(xb[:half]), yb[:half]), list(model.parameters()))
    stepped = copy_with(model, weights_of(model))
    with torch.no_grad():
        for p, g in zip(stepped.parameters(), first, strict=True):
            p -= alpha * g
    second = torch.autograd.grad(F.cross_entropy(stepped(xb[rest:]), yb[rest:]), list(stepped.parameters()))
    return sum((p * g).sum() for p, g in zip(model.parameters(), second, strict=True))


def test_two_rounds_equal_the_literal_algorithm():
    data, alpha = tiny_data(), 0.1
    task = tiny_task(len(data))
    w = task.initial
    for t in (1, 2):
        trained = []
        for i, own in enumerate(data):
            x, y = own.train.tensors()
            batches = batches_of(visit(task, data, i, t))
            loss = lambda model, xb, yb: adapted_loss(model, xb, yb, alpha)  # noqa: E731
            trained.append(literal_sgd(copy_with(task.model, w), x, y, batches, loss=loss))
        w = literal_mean(trained, [len(own.train) for own in data])
    assert_close(run_federation(PerFedAvg(alpha=alpha), data=data).server.weights("w"), w)


@pytest.mark.parametrize("first_order", [True, False])
def test_the_gradient_on_a_quadratic_is_known(first_order):
    """Logits (0, w) with one class: F has known derivatives; the meta gradient is F'(w - a F'(w)) (1 - a F''(w))."""

    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

        def forward(self, x):
            return torch.stack([torch.zeros_like(x), self.w * x], dim=1)

    model, alpha = Line(), 0.8
    x, y = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    after_a_step(alpha, first_order)(model, Batch(x, y, torch.arange(2))).backward()
    s = torch.sigmoid(model.w.detach())  # F(w) = log(1 + e^w), F' = s, F'' = s (1 - s)
    inner = torch.sigmoid(model.w.detach() - alpha * s)
    expected = inner if first_order else inner * (1 - alpha * s * (1 - s))
    torch.testing.assert_close(model.w.grad, expected)


def test_it_predicts_with_the_adapted_model():
    data, method = tiny_data(), PerFedAvg(alpha=0.2, adapt_epochs=2)
    run = run_federation(method, data=data)
    client, down = visit(run.task, data, 1, 3), method.send(run.server, 1)
    batches = batches_of(client, 2, "adapt")
    expected = literal_sgd(copy_with(run.task.model, down.weights("w")), *data[1].train.tensors(), batches, lr=0.2)
    up = method.local(visit(run.task, data, 1, 3), down)
    assert_close(weights_of(method.personal(client, down, up)), expected)
