"""FedRep against its algorithm written out by hand."""

import torch

from fedpac.data.augment import crop_and_flip
from fedpac.message import Message
from fedpac.methods.fedrep import FedRep
from fedpac.models import section
from fedpac.training import head_cross_entropy, train
from helpers import (
    assert_close,
    assert_equal,
    literal_mean,
    literal_training,
    run_federation,
    tiny_data,
    tiny_images,
    tiny_task,
    visit,
)  # fmt: skip


def test_two_rounds_equal_the_literal_algorithm():
    """The head first and with its own rate, then the body; no momentum is carried from one to the other."""
    data = tiny_data()
    task = tiny_task(len(data))
    body = section(task.initial, "body")
    heads = [section(task.initial, "head") for _ in data]
    for t in (1, 2):
        bodies = []
        for i in range(len(data)):
            w = {**body, **heads[i]}
            w = literal_training(task, data, i, t, w, "head", trained="head.", epochs=3, lr=0.2)
            w = literal_training(task, data, i, t, w, "body", trained="body.", epochs=1)
            heads[i] = section(w, "head")
            bodies.append(section(w, "body"))
        body = literal_mean(bodies, [len(own.train) for own in data])
    finished = run_federation(FedRep(head_epochs=3, head_lr=0.2, body_epochs=1), data=data)
    assert_close(finished.server.weights("w"), body)
    for i in range(len(data)):
        assert_close(finished.states[i]["own"], heads[i])


def test_only_the_body_travels():
    finished = run_federation(FedRep())
    assert set(finished.server.weights("w")) == {"body.0.weight", "body.0.bias"}
    assert finished.reports[0].bytes_down == 4 * 4 * (5 * 6 + 5)
    assert finished.reports[0].bytes_up == finished.reports[0].bytes_down + 4 * 8


def test_no_epochs_change_nothing():
    finished = run_federation(FedRep(head_epochs=0, body_epochs=0))
    assert_equal(finished.server.weights("w"), section(finished.task.initial, "body"))


def test_augmented_heads_see_every_image_cropped_and_flipped():
    data, model = tiny_images()
    task = tiny_task(1, model=model)

    def head(method):
        client = visit(task, data, 0)
        method.local(client, Message(w=section(task.initial, "body")))
        return client.state["own"]

    client = visit(task, data, 0)
    seen = crop_and_flip(client.train_set[0], client.stream("head/augment"), client.data.train.black())
    expected = train(
        client, task.initial, part="head", loss=head_cross_entropy, inputs=model.body(seen).detach(),
        epochs=1, lr=0.1, purpose="head",
    )  # fmt: skip
    assert_equal(head(FedRep(augmented=True)), section(expected, "head"))
    assert not torch.equal(head(FedRep())["head.weight"], expected["head.weight"])


def test_augmented_changes_nothing_where_images_are_not():
    assert run_federation(FedRep(augmented=True)).bytes() == run_federation(FedRep()).bytes()
