"""FedAS against its equations."""

import pytest
import torch
import torch.nn.functional as F

from fedpac.message import Message
from fedpac.methods.fedas import FedAS
from fedpac.methods.fedper import FedPer
from fedpac.models import copy_with, section
from helpers import (
    CLASSES,
    assert_close,
    assert_equal,
    batches_of,
    literal_mean,
    literal_sgd,
    literal_training,
    run_federation,
    tiny_data,
    tiny_model,
    tiny_task,
    visit,
)


def literal_fisher(task, w, x, y):
    """Sample by sample, the squared length of the gradient by the body."""
    squares = []
    for one, label in zip(x, y, strict=True):
        model = copy_with(task.model, w)
        F.cross_entropy(model(one[None]), label[None]).backward()
        squares.append(sum(float((p.grad**2).sum()) for p in model.body.parameters()))
    return sum(squares) / len(squares)


def test_two_rounds_equal_the_literal_algorithm():
    data = tiny_data()
    task = tiny_task(len(data))
    body = section(task.initial, "body")
    heads, means = [section(task.initial, "head")] * len(data), [None] * len(data)
    for t in (1, 2):
        bodies, traces = [], []
        for i, own in enumerate(data):
            x, y = own.train.tensors()
            w = {**body, **heads[i]}
            if means[i] is not None:

                def pull(model, xb, yb, targets=means[i]):
                    return sum(
                        ((z - targets[int(k)]) ** 2).mean() for z, k in zip(model.body(xb), yb, strict=True)
                    ) / len(yb)

                batches = batches_of(visit(task, data, i, t), 1, "align")
                w = literal_sgd(copy_with(task.model, w), x, y, batches, loss=pull, trained="body.")
            w = literal_training(task, data, i, t, w)
            z = copy_with(task.model, w).body(x).detach()
            means[i] = {k: z[y == k].mean(0) for k in range(CLASSES) if (y == k).any()}
            heads[i] = section(w, "head")
            bodies.append(section(w, "body"))
            traces.append(literal_fisher(task, w, x, y))
        body = literal_mean(bodies, traces)
    run = run_federation(FedAS(), data=data)
    assert_close(run.server.weights("w"), body)
    for i in range(len(data)):
        assert_close(run.states[i]["own"], heads[i])


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_without_its_two_ideas_it_is_fedper(model):
    class Unweighted(FedAS):
        def fisher(self, client, w):
            return float(client.n)

    ours = run_federation(Unweighted(align_epochs=0), model=tiny_model(model), participation=0.5, rounds=3)
    fedper = run_federation(FedPer(), model=tiny_model(model), participation=0.5, rounds=3)
    assert_equal(ours.server.weights("w"), fedper.server.weights("w"))
    assert [r.scores for r in ours.reports] == [r.scores for r in fedper.reports]


def test_the_trace_does_not_depend_on_the_size_of_batches():
    """In public code it is of a batch's mean gradient, so that a large batch looks as if nothing were to be learned."""
    data = tiny_data()
    traces = []
    for batch in (1, 4, 12):
        task = tiny_task(len(data), batch=batch)
        traces.append(FedAS().fisher(visit(task, data, 1), task.initial))
    assert traces[0] == traces[1] == traces[2] > 0


def test_where_nothing_is_left_to_learn_sizes_count():
    data, method = tiny_data(), FedAS()
    run = run_federation(method, data=data, rounds=1)
    ups = {i: method.local(visit(run.task, data, i, 2), method.send(run.server, i)) for i in range(4)}
    method.merge(run.server, {i: Message(**{**up, "fisher": 0.0}) for i, up in ups.items()})
    assert_close(run.server.weights("w"), literal_mean([up.weights("w") for up in ups.values()], [7, 12, 1, 9]))


def test_a_client_predicts_with_the_body_it_has_aligned():
    data, method = tiny_data(), FedAS()
    run = run_federation(method, data=data)
    client, down = visit(run.task, data, 1, 3, run.states[1]), method.send(run.server, 1)
    aligned = method.aligned(client, down)
    x = data[1].test.tensors()[0]
    torch.testing.assert_close(method.received(client, down)(x), copy_with(run.task.model, aligned)(x))
    assert not torch.equal(aligned["body.0.weight"], down.weights("w")["body.0.weight"])
