"""train(): the gradient that is written out is autograd's, and is used only where it is right."""

import pytest
import torch
from torch import nn

from fedpac import native, training
from fedpac.errors import TrainingError
from fedpac.models import Classifier, weights_of
from fedpac.training import cross_entropy, features, head_cross_entropy, proximal, train
from helpers import CLASSES, INPUTS, assert_close, assert_equal, tiny_data, tiny_model, tiny_task, visit

by_autograd = {  # losses that train() does not know
    cross_entropy: lambda model, batch: cross_entropy(model, batch),
    head_cross_entropy: lambda model, batch: head_cross_entropy(model, batch),
}


def linear(bias=True, dtype=torch.float32):
    torch.manual_seed(5)
    return Classifier(nn.Flatten(), nn.Linear(INPUTS, CLASSES, bias=bias)).to(dtype)


@pytest.fixture
def written_out_used(monkeypatch):
    """How many trainings went without autograd."""
    used = []
    original = training._by_hand

    def counting(*arguments):
        found = original(*arguments)
        used.append(found is not None)
        return found

    monkeypatch.setattr(training, "_by_hand", counting)
    return lambda: sum(used)


@pytest.fixture(params=["native", "torch"])
def same(request, monkeypatch):
    """With torch's own kernels alone the numbers are autograd's to the last bit."""
    if request.param == "native":
        return assert_close
    monkeypatch.setattr(native, "available", lambda: False)
    return assert_equal


def trained(model, loss=cross_entropy, inputs=None, **how):
    """Weights and features that train() makes of a client with nine samples: two batches of four and one of one."""
    data = tiny_data()
    client = visit(tiny_task(len(data), model=model, **how.pop("recipe", {})), data, 3)
    dtype = next(model.parameters()).dtype
    z = features(client, weights_of(model)) if inputs == "features" else client.train_set[0].to(dtype)
    return train(client, weights_of(model), loss=loss, inputs=z, **how)


@pytest.mark.parametrize("recipe", [{}, {"momentum": 0.0, "weight_decay": 0.0}, {"batch": 100, "lr": 3.0}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_logistic_regression_written_out_is_by_autograd(bias, dtype, recipe, written_out_used, same):
    model = linear(bias, dtype)
    found = trained(model, recipe=recipe)
    assert written_out_used() == 1
    same(found, trained(model, by_autograd[cross_entropy], recipe=recipe))
    assert written_out_used() == 1
    assert not torch.equal(found["head.weight"], model.head.weight)


def test_a_head_on_features_written_out_is_by_autograd(written_out_used, same):
    how = {"part": "head", "inputs": "features", "correction": proximal(0.3, torch.ones(24)), "purpose": "head"}
    found = trained(tiny_model(), head_cross_entropy, **how)
    assert written_out_used() == 1
    same(found, trained(tiny_model(), by_autograd[head_cross_entropy], **how))


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked(model):
    model.head.register_forward_hook(lambda module, args, output: 2 * output)
    return model


def frozen(model):
    model.head.bias.requires_grad_(False)
    return model


class Twice(Classifier):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "model",
    [
        Classifier(nn.Flatten(), Scaled(INPUTS, CLASSES)),
        Twice(nn.Flatten(), nn.Linear(INPUTS, CLASSES)),
        hooked(linear()),
        frozen(linear()),
    ],
    ids=["own layer", "own forward", "hook", "frozen"],
)
def test_anything_else_goes_by_autograd(model, written_out_used):
    assert_equal(trained(model), trained(model, by_autograd[cross_entropy]))
    assert written_out_used() == 0


def state_of(model):
    """What training must leave as it was: which tensors the parameters are, their gradients and flags."""
    return [(p.data_ptr(), p.dtype, p.grad, p.requires_grad) for p in model.parameters()]


@pytest.mark.parametrize("part", ["all", "body", "head"])
def test_the_module_is_left_as_it_was_found(part):
    data = tiny_data()
    client = visit(tiny_task(len(data)), data, 3)
    before = state_of(client.model)
    train(client, client.task.initial, part=part)
    assert state_of(client.model) == before


def test_the_module_is_left_as_it_was_found_by_what_fails():
    data = tiny_data()
    client = visit(tiny_task(len(data)), data, 3)
    before = state_of(client.model)
    with pytest.raises(TrainingError, match="diverged"):
        train(client, client.task.initial, lr=1e30)
    assert state_of(client.model) == before
    with pytest.raises(RuntimeError, match=r"shape|size"):
        train(client, {**client.task.initial, "head.bias": torch.zeros(CLASSES + 1)})
    assert state_of(client.model) == before


def test_weights_keep_their_types():
    model = tiny_model()
    model.head.double()
    data = tiny_data()
    client = visit(tiny_task(len(data), model=model), data, 3)
    start = weights_of(model)

    def mixed(model, batch):
        return nn.functional.cross_entropy(model.head(model.body(batch.x.double())), batch.y)

    trained = train(client, start, loss=mixed)
    assert {name: t.dtype for name, t in trained.items()} == {name: t.dtype for name, t in start.items()}
    assert not torch.equal(trained["head.weight"], start["head.weight"])


@pytest.mark.parametrize("part", ["head", "body"])
def test_the_part_that_is_not_trained_is_frozen_altogether(part):
    """Running statistics are no parameters, and yet they would move; dropout would blur what the other part sees."""
    data = tiny_data()
    layers = [nn.Linear(INPUTS, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3)]
    model = Classifier(nn.Sequential(*layers), nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, CLASSES)))
    task = tiny_task(len(data), model=model)
    trained = train(visit(task, data, 0), task.initial, part=part)
    still = {name: tensor for name, tensor in task.initial.items() if not name.startswith(part)}
    assert_equal({name: trained[name] for name in still}, still)
    assert any(not torch.equal(trained[name], tensor) for name, tensor in task.initial.items() if "running" in name)
