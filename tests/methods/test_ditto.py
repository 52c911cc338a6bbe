"""Ditto against its equations, Local-only and FedAvg."""

import pytest
import torch

from fedpac.message import Message
from fedpac.methods.ditto import Ditto
from fedpac.methods.fedavg import FedAvg
from fedpac.methods.local import Local
from fedpac.models import copy_with, weights_of
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


def test_two_rounds_equal_the_literal_algorithm():
    data = tiny_data()
    task = tiny_task(len(data))
    w, v = task.initial, [task.initial] * len(data)
    for t in (1, 2):
        trained = []
        for i, own in enumerate(data):
            x, y = own.train.tensors()
            batches = batches_of(visit(task, data, i, t))
            pull = lambda name, p, g, w=w: g + 1.0 * (p - w[name])  # noqa: E731  towards the w received, not the new one
            v[i] = literal_sgd(copy_with(task.model, v[i]), x, y, batches, correct=pull)
            trained.append(literal_sgd(copy_with(task.model, w), x, y, batches))
        w = literal_mean(trained, [len(own.train) for own in data])
    run = run_federation(Ditto(), data=data)
    assert_close(run.server.weights("w"), w)
    for i in range(len(data)):
        assert_close(run.states[i]["v"], v[i])


@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_a_pull_it_is_local_only(model, participation):
    ditto = run_federation(Ditto(lam=0), model=tiny_model(model), participation=participation, rounds=3)
    local = run_federation(Local(), model=tiny_model(model), participation=participation, rounds=3)
    for i, state in local.states.items():
        assert_equal(ditto.states[i]["v"], state["own"])
    assert ditto.reports[0].scores == local.reports[0].scores  # also of clients that did not take part


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_its_global_branch_is_fedavg(model):
    ditto = run_federation(Ditto(), model=tiny_model(model), participation=0.5, rounds=3)
    fedavg = run_federation(FedAvg(), model=tiny_model(model), participation=0.5, rounds=3)
    assert_equal(ditto.server.weights("w"), fedavg.server.weights("w"))


def test_it_predicts_with_the_personal_model_and_pulls_by_default():
    data = tiny_data()
    run = run_federation(Ditto(), data=data)
    client = visit(run.task, data, 0, 3, run.states[0])
    down = Ditto().send(run.server, 0)
    assert_equal(weights_of(Ditto().received(client, down)), run.states[0]["v"])
    assert not torch.equal(
        run.states[0]["v"]["head.bias"], run_federation(Local(), data=data).states[0]["own"]["head.bias"]
    )
    newcomer = visit(run.task, data, 0, 3)
    assert_equal(weights_of(Ditto().received(newcomer, down)), run.task.initial)
    up = Ditto().local(client, down)
    assert isinstance(up, Message)
    assert_equal(weights_of(Ditto().personal(client, down, up)), client.weights("v"))
