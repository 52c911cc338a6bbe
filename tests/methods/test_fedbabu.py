"""FedBABU against its algorithm written out by hand."""

import torch

from fedpac.message import Message
from fedpac.methods.fedbabu import FedBABU
from fedpac.models import section, weights_of
from fedpac.training import train
from helpers import (
    assert_close,
    assert_equal,
    literal_mean,
    literal_training,
    run_federation,
    tiny_data,
    tiny_task,
    visit,
)  # fmt: skip


def test_two_rounds_equal_the_literal_algorithm():
    data = tiny_data()
    task = tiny_task(len(data))
    head, body = section(task.initial, "head"), section(task.initial, "body")
    for t in (1, 2):
        trained = [literal_training(task, data, i, t, {**body, **head}, trained="body.") for i in range(len(data))]
        body = literal_mean([section(w, "body") for w in trained], [len(own.train) for own in data])
    finished = run_federation(FedBABU(), data=data)
    assert_close(finished.server.weights("w"), body)
    assert finished.states == {}


def test_the_head_does_not_move_even_with_momentum_and_decay():
    data = tiny_data()
    task = tiny_task(len(data), weight_decay=0.9, momentum=0.9)
    client = visit(task, data, 1)
    up = FedBABU().local(client, Message(w=section(task.initial, "body")))
    now = train(client, task.initial, part="body")
    assert_equal(now, {**task.initial, **up.weights("w")})
    assert not torch.equal(now["body.0.weight"], task.initial["body.0.weight"])


def test_prediction_fine_tunes_body_and_head_of_the_received_model():
    data = tiny_data()
    finished = run_federation(FedBABU(), rounds=1, data=data)
    task, down = finished.task, FedBABU().send(finished.server, 1)
    client = visit(task, data, 1, round=2)
    up = FedBABU().local(client, down)
    model = weights_of(FedBABU(epochs=3).personal(client, down, up))
    start = {**section(task.initial, "head"), **finished.server.weights("w")}
    assert_close(model, literal_training(task, data, 1, 2, start, epochs=3))
    assert not torch.equal(model["head.weight"], task.initial["head.weight"])
    assert FedBABU.reported == "personal"
