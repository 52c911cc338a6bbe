"""SGD written out by hand, and what else the tests of methods and engines share; tiny federations are the package's."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.data.clients import ClientData, Pool, Samples
from fedpac.engines import ENGINES
from fedpac.message import Weights
from fedpac.models import Classifier, copy_with
from fedpac.task import Task
from fedpac.testing.tiny import (
    CLASSES,
    FEATURES,
    INPUTS,
    RECIPE,
    Finished,
    run_federation,
    tiny_data,
    tiny_model,
    tiny_task,
    visit,
)
from fedpac.training import shuffled_batches

__all__ = [
    "CLASSES", "EVERY_ENGINE", "FEATURES", "INPUTS", "RECIPE", "Finished", "assert_close", "assert_equal", "batches_of",
    "literal_mean",
    "literal_sgd", "literal_training", "run_federation", "tiny_data", "tiny_images", "tiny_model", "tiny_task", "visit",
]  # fmt: skip


EVERY_ENGINE = [pytest.param(name, marks=pytest.mark.ray) if name == "ray" else name for name in ENGINES]


def tiny_images() -> tuple[list[ClientData], Classifier]:
    """One client whose images are augmented in training, and a model for them."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, (60, 1, 9, 9), dtype=torch.uint8, generator=random)
    pool = Pool(images, torch.arange(60) % CLASSES, mean=(0.5,), std=(0.3,))  # else rounding grows from step to step
    data = [ClientData(Samples(pool, torch.arange(40)), Samples(pool, torch.arange(40, 60)), augment=True)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return data, Classifier(nn.Sequential(nn.Flatten(), nn.Linear(81, 5), nn.Tanh()), nn.Linear(5, CLASSES))


def batches_of(client: Client, epochs: int | None = None, purpose: str = "train") -> list[Tensor]:
    """The batches that the client's visit draws: the only thing an oracle takes from the project's training."""
    recipe = client.recipe
    return list(shuffled_batches(client.n, recipe.batch, epochs or recipe.epochs, client.stream(purpose)))


def literal_sgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    batches: Iterable[Tensor],
    *,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
    trained: str | tuple[str, ...] = "",
    correct: Callable[[str, Tensor, Tensor], Tensor] | None = None,
    lr: float = RECIPE["lr"],
    momentum: float = RECIPE["momentum"],
    weight_decay: float = RECIPE["weight_decay"],
) -> Weights:
    """SGD as in a textbook, one parameter at a time, in the given module (which is changed).

    trained   only parameters whose names start so move
    correct   (name, parameter, gradient) -> gradient, before weight decay
    """
    loss = loss or (lambda model, x, y: F.cross_entropy(model(x), y))
    model.train()
    velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for index in batches:
        parameters = {name: p for name, p in model.named_parameters() if name.startswith(trained)}
        gradients = torch.autograd.grad(loss(model, x[index], y[index]), list(parameters.values()))
        with torch.no_grad():
            for (name, p), g in zip(parameters.items(), gradients, strict=True):
                g = g if correct is None else correct(name, p, g)
                velocity[name] = momentum * velocity[name] + g + weight_decay * p
                p.sub_(lr * velocity[name])
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def literal_mean(weights: Sequence[Weights], shares: Sequence[float]) -> Weights:
    """sum_i share_i w_i / sum_i share_i, name by name."""
    total = float(sum(shares))
    return {
        name: sum(s / total * w[name].double() for s, w in zip(shares, weights, strict=True)).to(first.dtype)  # type: ignore[union-attr]
        for name, first in weights[0].items()
    }


def assert_equal(one: Weights, other: Weights) -> None:
    """The same names and exactly the same numbers."""
    assert sorted(one) == sorted(other)
    for name in one:
        assert torch.equal(one[name], other[name]), f"{name} differs by {(one[name] - other[name]).abs().max()}"


def assert_close(one: Weights, other: Weights) -> None:
    """The same names and the same numbers up to rounding in single precision."""
    assert sorted(one) == sorted(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=2e-6, msg=partial(named, name))


def named(name: str, message: str) -> str:
    return f"{name}: {message}"


def literal_training(
    task: Task, data: Sequence[ClientData], i: int, round: int, w: Weights, purpose: str = "train", **how: Any
) -> Weights:
    """Client i trains w in this round by `literal_sgd`, on the batches of the named stream."""
    batches = batches_of(visit(task, data, i, round), how.pop("epochs", None), purpose)
    return literal_sgd(copy_with(task.model, w), *data[i].train.tensors(), batches, **how)
