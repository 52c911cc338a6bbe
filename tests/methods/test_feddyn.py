"""FedDyn against its equations."""

import torch

from fedpac.methods.feddyn import FedDyn
from fedpac.methods.fedprox import FedProx
from fedpac.models import copy_with
from fedpac.server import Server
from helpers import assert_close, batches_of, literal_sgd, run_federation, tiny_data, tiny_task, visit


def zeros(w):
    return {name: torch.zeros_like(t) for name, t in w.items()}


def test_three_rounds_equal_the_literal_algorithm():
    data, alpha = tiny_data(), 0.3
    task = tiny_task(len(data), 3)
    w, h, g = task.initial, zeros(task.initial), [zeros(task.initial) for _ in data]
    for t in (1, 2, 3):
        trained = []
        for i, own in enumerate(data):
            x, y = own.train.tensors()

            def correct(name, p, slope, w=w, g=g[i]):
                return slope - g[name] + alpha * (p - w[name])

            done = literal_sgd(copy_with(task.model, w), x, y, batches_of(visit(task, data, i, t)), correct=correct)
            g[i] = {name: g[i][name] - alpha * (done[name] - w[name]) for name in w}
            trained.append(done)
        h = {name: h[name] - alpha / 4 * sum(done[name] - w[name] for done in trained) for name in w}
        w = {name: sum(done[name] for done in trained) / 4 - h[name] / alpha for name in w}
    run = run_federation(FedDyn(alpha=alpha), data=data, rounds=3)
    assert_close(run.server.weights("w"), w)
    for i in range(len(data)):
        flat = torch.cat([g[i][name].flatten() for name in w])
        torch.testing.assert_close(run.states[i]["g"], flat, rtol=1e-4, atol=2e-6)


def test_its_first_local_step_is_fedprox():
    data = tiny_data()
    task = tiny_task(len(data))
    run = run_federation(FedDyn(alpha=0.2), data=data, rounds=1)
    ups = [FedProx(mu=0.2).local(visit(task, data, i), FedProx().send(_fresh(task), i)) for i in range(4)]
    mean = {name: sum(up.weights("w")[name] for up in ups) / 4 for name in task.initial}
    expected = {name: 2 * mean[name] - task.initial[name] for name in mean}  # h/alpha is minus the mean step
    assert_close(run.server.weights("w"), expected)


def _fresh(task):
    server = Server(task)
    FedProx().setup(server)
    return server


def test_absent_clients_count_in_the_state_of_the_server():
    """h divides by all clients, not by those of the round."""
    data, method = tiny_data(), FedDyn(alpha=0.5)
    task = tiny_task(len(data))
    server = _fresh(task)
    method.setup(server)
    up = method.local(visit(task, data, 1), method.send(server, 1))
    method.merge(server, {1: up})
    moved = {name: up.weights("w")[name] - task.initial[name] for name in task.initial}
    expected = {name: task.initial[name] + (1 + 1 / 4) * moved[name] for name in moved}
    assert_close(server.weights("w"), expected)
