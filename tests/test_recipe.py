"""Optimizers, schedules and losses of local training, against what torch does with the same steps written out."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedpac
from fedpac.config import make_config
from fedpac.criterion import Criterion
from fedpac.errors import ConfigError
from fedpac.methods import list_methods, make_method
from fedpac.models import load_into, weights_of
from fedpac.recipe import Recipe
from fedpac.testing.tiny import CLASSES, INPUTS, run_federation, tiny_data, tiny_task, visit
from fedpac.training import _by_hand, cross_entropy, head_cross_entropy, shuffled_batches, train


def relu_model():
    """All of its derivatives are written out in fedpac.backprop."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return fedpac.Classifier(nn.Sequential(nn.Linear(INPUTS, 5), nn.ReLU()), nn.Linear(5, CLASSES))


def literal(client, weights, optimizer, loss):
    """E epochs, one step of torch's optimizer for each batch."""
    model = load_into(relu_model(), weights)
    steps = optimizer(model.parameters())
    x, y = client.train_set
    recipe = client.recipe
    for index in shuffled_batches(len(y), recipe.batch, recipe.epochs, client.stream("train")):
        steps.zero_grad()
        loss(model(x[index]), y[index]).backward()
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        steps.step()
    return weights_of(model)


def trained(**recipe):
    task = tiny_task(4, rounds=10, model=relu_model(), **recipe)
    client = visit(task, tiny_data(), 1, round=4)
    return client, train(client, task.initial)


@pytest.mark.parametrize(("name", "optimizer"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_adam_is_torchs(name, optimizer):
    client, w = trained(optimizer=name, momentum=0.5, weight_decay=0.1)
    expected = literal(
        client, client.initial, lambda p: optimizer(p, lr=0.05, weight_decay=0.1), lambda o, y: F.cross_entropy(o, y)
    )
    for key, tensor in expected.items():
        torch.testing.assert_close(w[key], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "more",
    [
        {"clip": 0.1},
        {"label_smoothing": 0.2},
        {"class_weights": (1.0, 0.5, 2.0, 3.0)},
        {"class_weights": "balanced", "label_smoothing": 0.1, "clip": 0.5},
    ],
    ids=str,
)
def test_the_loss_and_the_clipping_are_torchs(more):
    client, w = trained(momentum=0.0, weight_decay=0.0, **more)
    weights = more.get("class_weights")
    if weights == "balanced":
        counts = client.class_counts.double()
        there = counts > 0
        weights = [float(counts.sum() / there.sum() / n) if n else 0.0 for n in counts]
    weight = None if weights is None else torch.tensor(weights)
    expected = literal(
        client,
        client.initial,
        lambda p: torch.optim.SGD(p, lr=0.05),
        lambda o, y: F.cross_entropy(o, y, weight=weight, label_smoothing=more.get("label_smoothing", 0.0)),
    )
    assert any(not torch.allclose(w[key], client.initial[key]) for key in w)
    for key, tensor in expected.items():
        torch.testing.assert_close(w[key], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", [cross_entropy, head_cross_entropy])
def test_gradients_are_written_out_for_other_losses_too(loss):
    """The kernels stay in use: only the gradient by the outputs is autograd's."""
    model = relu_model()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    assert _by_hand(model, loss, Criterion(torch.ones(CLASSES), 0.1)) is not None


@pytest.mark.parametrize(
    ("recipe", "factors"),
    [
        ({}, [1, 1, 1, 1, 1]),
        ({"schedule": "cosine"}, [0.5 * (1 + math.cos(math.pi * t / 4)) for t in (0, 1, 2, 3, 3)]),
        ({"schedule": "step", "step_every": 2, "step_factor": 0.5}, [1, 1, 0.5, 0.5, 0.5]),
        ({"warmup": 3}, [1 / 3, 2 / 3, 1, 1, 1]),
        ({"schedule": "step", "step_every": 1, "step_factor": 0.5, "warmup": 2}, [0.5, 0.5, 0.25, 0.125, 0.125]),
    ],
    ids=str,
)
def test_the_rate_over_four_rounds_and_after_them(recipe, factors):
    assert [Recipe(**recipe).factor(t, 4) for t in range(1, 6)] == pytest.approx(factors)


def test_a_schedule_holds_for_every_rate():
    """Also for those that are a method's own: at a hundredth of the rate, nobody has moved far."""
    slow = {"schedule": "step", "step_every": 1, "step_factor": 0.01}
    client, w = trained(**slow)  # round 4: a millionth
    assert all(torch.allclose(w[key], client.initial[key], atol=1e-5) for key in w)
    moved = train(client, client.initial, lr=10.0, epochs=1)
    assert all(torch.allclose(moved[key], client.initial[key], atol=1e-3) for key in moved)


@pytest.mark.parametrize("name", sorted(list_methods()))
def test_unset_keys_change_nothing(name):
    """A recipe that states the defaults gives the same bits as one that does not."""
    stated = {
        "optimizer": "sgd", "schedule": "constant", "warmup": 0, "clip": None, "class_weights": None,
        "label_smoothing": 0.0,
    }  # fmt: skip
    one, other = (run_federation(make_method(name), rounds=1, **recipe) for recipe in ({}, stated))
    assert one.bytes() == other.bytes()


def test_old_runs_keep_their_identity():
    assert make_config({}).identity()["training"].keys() == {"lr", "momentum", "weight_decay", "batch", "epochs"}
    assert make_config({"training": {"clip": 1.0}}).identity()["training"]["clip"] == 1.0


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"optimizer": "adam", "momentum": 0.9}, "momentum is for optimizer 'sgd'"),
        ({"step_every": 3}, "step_every is for schedule 'step'"),
        ({"optimizer": "rmsprop"}, "'sgd', 'adam' or 'adamw'"),
        ({"label_smoothing": 1.0}, "less than 1"),
        ({"clip": 0}, "greater than 0"),
    ],
    ids=str,
)
def test_what_a_recipe_cannot_be(training, message):
    with pytest.raises(ConfigError, match=message):
        make_config({"training": training})
    x, y = np.zeros((4, 3), dtype="float32"), np.array([0, 1, 0, 1])
    model = fedpac.Classifier(nn.Flatten(), nn.Linear(3, 2))
    with pytest.raises(ConfigError):
        fedpac.fit(model, [(x, y, x, y)], "local", training=training)


def test_weights_for_another_number_of_classes():
    with pytest.raises(ConfigError, match="has 2 numbers, but there are 4 classes"):
        tiny_task(2, class_weights=(1.0, 2.0))
