"""pFedMe against its equations."""

import pytest
import torch
import torch.nn.functional as F

from fedpac.errors import ConfigError
from fedpac.methods import make_method
from fedpac.methods.pfedme import PFedMe
from fedpac.models import copy_with, weights_of
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


def by_the_book(model, w, x, y, batches, lam, steps, lr, eta):
    """(theta, w_i) after one round of the paper's Algorithm 1 with momentum and weight decay in the inner SGD."""
    theta = copy_with(model, w)
    w = {name: tensor.clone() for name, tensor in w.items()}
    speed = dict.fromkeys(w, 0.0)
    for index in batches:
        for _ in range(steps):
            gradient = torch.autograd.grad(F.cross_entropy(theta(x[index]), y[index]), list(theta.parameters()))
            with torch.no_grad():
                for (name, p), g in zip(theta.named_parameters(), gradient, strict=True):
                    speed[name] = RECIPE["momentum"] * speed[name] + g + lam * (p - w[name])
                    speed[name] = speed[name] + RECIPE["weight_decay"] * p
                    p -= lr * speed[name]
        for name, p in theta.state_dict().items():
            w[name] = w[name] - eta * lam * (w[name] - p)
    return weights_of(theta), w


@pytest.mark.parametrize(("rounds", "beta"), [(None, 1.0), (3, 2.0)])
def test_two_rounds_equal_the_literal_algorithm(rounds, beta):
    data = tiny_data()
    task = tiny_task(len(data))
    w, theta = task.initial, {}
    for t in (1, 2):
        answers = []
        for i, own in enumerate(data):
            client = visit(task, data, i, t)
            wanted = rounds or RECIPE["epochs"] * -(-client.n // RECIPE["batch"])
            batches = batches_of(client, epochs=wanted)[:wanted]
            theta[i], answer = by_the_book(task.model, w, *own.train.tensors(), batches, 10, 3, 0.02, 0.03)
            answers.append(answer)
        mean = literal_mean(answers, [len(own.train) for own in data])
        w = {name: (1 - beta) * w[name] + beta * mean[name] for name in w}
    run = run_federation(PFedMe(steps=3, lr=0.02, eta=0.03, local_rounds=rounds, beta=beta), data=data)
    assert_close(run.server.weights("w"), w)
    for i in range(len(data)):
        assert_close(run.states[i]["theta"], theta[i])


def test_the_personal_model_is_theta_and_not_the_clients_w():
    """Public code holds theta by reference and so scores w_i, or never stores it and scores the initial weights."""
    data = tiny_data()
    task, method = tiny_task(len(data), lr=0.02), PFedMe()
    client = visit(task, data, 1)
    down = method.send(run_federation(method, data=data, lr=0.02).server, 1)
    up = method.local(client, down)
    used = weights_of(method.personal(client, down, up))
    assert_equal(used, client.state["theta"])
    again = weights_of(method.received(visit(task, data, 1, 2, client.state), down))
    assert_equal(again, used)
    for other in (up.weights("w"), down.weights("w"), task.initial):
        assert not torch.equal(used["head.weight"], other["head.weight"])


def test_the_global_model_moves_by_default_and_beta_zero_is_refused():
    run = run_federation(PFedMe(), lr=0.02)
    assert not torch.equal(run.server.weights("w")["head.weight"], run.task.initial["head.weight"])
    with pytest.raises(ConfigError, match="beta"):
        make_method("pfedme", {"beta": 0})


def test_it_takes_every_batch_of_its_epochs():
    data = tiny_data(sizes=(40, 40))
    task = tiny_task(2, epochs=5)
    client = visit(task, data, 0)
    assert len(PFedMe().batches(client)) == len(batches_of(client)) == 5 * 10
    assert len(PFedMe(local_rounds=12).batches(client)) == 12


def test_an_overshooting_rate_is_refused():
    with pytest.raises(ConfigError, match=r"eta \* lam = 1.*below 1"):
        run_federation(PFedMe(lam=50), lr=0.02)
    run_federation(PFedMe(lam=50, eta=0.01), lr=0.02, rounds=1)


def test_running_statistics_stay_sound_when_beta_overshoots():
    run = run_federation(PFedMe(beta=3), model=tiny_model("norm"), lr=0.02, rounds=4)
    assert (run.server.weights("w")["body.1.running_var"] >= 0).all()
