"""SCAFFOLD against its algorithm written out by hand, and its control variates against what they estimate."""

import torch
import torch.nn.functional as F

from fedpac.methods.fedavg import FedAvg
from fedpac.methods.scaffold import Scaffold
from fedpac.models import copy_with
from helpers import (
    assert_close,
    assert_equal,
    batches_of,
    literal_training,
    run_federation,
    tiny_data,
    tiny_model,
    tiny_task,
    visit,
)

PLAIN = {"momentum": 0.0, "weight_decay": 0.0}


def flat(weights):
    return torch.cat([tensor.reshape(-1) for tensor in weights.values()])


def test_three_rounds_equal_the_literal_algorithm():
    """Option II as the paper writes it, which plain SGD allows; 2 of 4 clients, then all; lr_g = 0.8."""
    data = tiny_data()
    finished = run_federation(Scaffold(server_lr=0.8), rounds=3, data=data, participation=0.5, **PLAIN)
    task, lr, N = finished.task, finished.task.recipe.lr, len(data)
    x = task.initial
    c = {name: torch.zeros_like(t) for name, t in x.items()}
    own = [dict(c) for _ in data]
    for report in finished.reports:
        moves, changes = [], []
        for i in report.chosen:
            K = len(batches_of(visit(task, data, i, report.round)))
            y = literal_training(
                task, data, i, report.round, x, **PLAIN, correct=lambda n, p, g, i=i, c=c: g - own[i][n] + c[n]
            )
            new = {n: own[i][n] - c[n] + (x[n] - y[n]) / (K * lr) for n in x}
            moves.append({n: y[n] - x[n] for n in x})
            changes.append({n: new[n] - own[i][n] for n in x})
            own[i] = new
        x = {n: x[n] + 0.8 * sum(m[n] for m in moves) / len(moves) for n in x}
        c = {n: c[n] + sum(d[n] for d in changes) / N for n in x}
    assert_close(finished.server.weights("w"), x)
    assert_close({"c": finished.server.state["c"]}, {"c": flat(c)})
    for i in range(N):
        assert_close({"c": finished.states[i]["c"]}, {"c": flat(own[i])})


def test_the_first_round_is_fedavg_and_the_second_is_not():
    data = tiny_data((8, 8, 8))  # equal sizes: the paper's mean is not weighted
    for rounds in (1, 2):
        one, other = (run_federation(m, rounds=rounds, data=data).server.weights("w") for m in (Scaffold(), FedAvg()))
        if rounds == 1:
            assert_equal(one, other)
        else:  # control variates that were lost between rounds would give FedAvg again
            assert not torch.allclose(one["body.0.weight"], other["body.0.weight"], atol=1e-4)


def test_with_full_participation_c_is_the_mean_of_all_c_i():
    for rounds in (1, 2, 3):
        finished = run_federation(Scaffold(), rounds=rounds)
        mean = sum(finished.states[i]["c"].double() for i in range(4)) / 4
        assert_close({"c": finished.server.state["c"].double()}, {"c": mean})


def test_a_control_variate_is_the_mean_raw_gradient_also_with_momentum_and_decay():
    """(x - y) / (K lr) would be wrong here: momentum counts a gradient up to twice, and decay joins in."""
    data = tiny_data()
    task = tiny_task(len(data))
    first = run_federation(Scaffold(), rounds=1, data=data)
    client = visit(task, data, 1, round=2, state=dict(first.states[1]))
    down = Scaffold().send(first.server, 1)
    Scaffold().local(client, down)

    model = copy_with(task.model, down.weights("w"))
    shift = down.tensor("c") - first.states[1]["c"]
    x, y = data[1].train.tensors()
    velocity, total, batches = torch.zeros_like(shift), torch.zeros_like(shift), batches_of(client)
    assert [len(b) for b in batches] == [4, 4, 4] * 2
    for index in batches:
        g = flat(dict(enumerate(torch.autograd.grad(F.cross_entropy(model(x[index]), y[index]), model.parameters()))))
        total += g
        w = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        velocity = 0.5 * velocity + g + shift + 0.01 * w
        torch.nn.utils.vector_to_parameters(w - 0.05 * velocity, model.parameters())
    assert_close({"c": client.state["c"]}, {"c": total / len(batches)})


def test_it_sends_twice_as_much():
    finished = run_federation(Scaffold())
    w = 4 * finished.server.state["c"].numel()
    assert finished.reports[0].bytes_down == finished.reports[0].bytes_up == 4 * 2 * w


def test_the_statistics_of_batch_norm_are_averaged_and_not_followed():
    """Three times the way to a smaller variance could end below zero."""
    near, far = (
        run_federation(Scaffold(server_lr=lr), rounds=1, model=tiny_model("norm")).server.weights("w")
        for lr in (1.0, 3.0)
    )
    for name in ("body.1.running_mean", "body.1.running_var"):
        assert torch.equal(near[name], far[name])
    assert not torch.equal(near["head.weight"], far["head.weight"])
