"""Tiny federations, and SGD written out by hand: what the tests of methods and engines share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.data.clients import ClientData, Part, Pool
from fedpac.engines import Engine, SerialEngine
from fedpac.federation import Federation, RoundReport
from fedpac.message import Message, Weights
from fedpac.methods import Method
from fedpac.models import Classifier, copy_with
from fedpac.server import Server
from fedpac.task import Recipe, State, Task
from fedpac.training import shuffled_batches

CLASSES, INPUTS, FEATURES = 4, 6, 5
SIZES = (7, 12, 1, 9)  # unequal, one client with a single sample, and no multiple of the batch
RECIPE = {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.01, "batch": 4, "epochs": 2}


def tiny_data(
    sizes: Sequence[int] = SIZES,
    classes_of: Sequence[Sequence[int]] | None = None,
    relabel: Sequence[Tensor | None] | None = None,
    tests: int = 8,
    seed: int = 0,
) -> list[ClientData]:
    """Gaussian blobs in INPUTS dimensions. Class 3 is nobody's unless `classes_of` says so."""
    generator = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(CLASSES, INPUTS, generator=generator)
    classes_of = classes_of or [[(i + j) % 3 for j in range(3 if i == 1 else 2)] for i in range(len(sizes))]
    labels: list[Tensor] = []
    for size, classes in zip(sizes, classes_of, strict=True):
        for n in (size, tests):
            labels.append(torch.tensor([classes[j % len(classes)] for j in range(n)]))
    y = torch.cat(labels)
    pool = Pool(means[y] + torch.randn(len(y), INPUTS, generator=generator), y)
    clients, at = [], 0
    for i, size in enumerate(sizes):
        change = relabel[i] if relabel else None
        train = Part(pool, torch.arange(at, at + size), change)
        test = Part(pool, torch.arange(at + size, at + size + tests), change)
        clients.append(ClientData(train, test))
        at += size + tests
    return clients


def tiny_images() -> tuple[list[ClientData], Classifier]:
    """One client whose images are augmented in training, and a model for them."""
    random = torch.Generator().manual_seed(0)
    pool = Pool(torch.randint(256, (60, 1, 9, 9), dtype=torch.uint8, generator=random), torch.arange(60) % CLASSES)
    data = [ClientData(Part(pool, torch.arange(40)), Part(pool, torch.arange(40, 60)), augment=True)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return data, Classifier(nn.Sequential(nn.Flatten(), nn.Linear(81, 5), nn.Tanh()), nn.Linear(5, CLASSES))


def tiny_model(kind: str = "plain", seed: int = 0) -> Classifier:
    """plain; norm (BatchNorm and dropout); linear (a body without weights); headless (a head without weights)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "linear":
            return Classifier(nn.Flatten(), nn.Linear(INPUTS, CLASSES))
        if kind == "headless":
            return Classifier(
                nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh(), nn.Linear(5, CLASSES)), nn.Identity()
            )
        if kind == "norm":
            layers = [nn.Linear(INPUTS, FEATURES), nn.BatchNorm1d(FEATURES), nn.ReLU(), nn.Dropout(0.3)]
            return Classifier(nn.Sequential(*layers), nn.Linear(FEATURES, CLASSES))
        assert kind == "plain"
        return Classifier(nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh()), nn.Linear(FEATURES, CLASSES))


def tiny_task(
    clients: int,
    rounds: int = 2,
    model: nn.Module | None = None,
    seed: int = 3,
    device: str = "cpu",
    **recipe: float,
) -> Task:
    return Task(model or tiny_model(), CLASSES, Recipe(**{**RECIPE, **recipe}), seed, clients, rounds, device)


@dataclass
class Finished:
    """A federation that has run, and what its rounds reported."""

    task: Task
    federation: Federation
    reports: list[RoundReport]

    @property
    def server(self) -> Server:
        return self.federation.server

    @property
    def states(self) -> dict[int, State]:
        return self.federation.engine.states

    def accuracies(self, which: str = "received") -> list[float]:
        return self.reports[-1].accuracies(which)  # type: ignore[arg-type]

    def scores(self) -> list[list[object]]:
        """Everything that was measured, for exact comparison."""
        return [[r.round, r.chosen, r.scores, r.bytes_down, r.bytes_up, r.peer_weights] for r in self.reports]

    def bytes(self) -> dict[str, bytes]:
        """All that must be saved: the server's state and every client's."""
        saved = {f"client {i}": Message(**state).to_bytes() for i, state in sorted(self.states.items())}
        return {"server": Message(**self.server.state).to_bytes(), **saved}


def run_federation(
    method: Method,
    rounds: int = 2,
    data: Sequence[ClientData] | None = None,
    model: nn.Module | None = None,
    participation: float = 1.0,
    seed: int = 3,
    engine: Callable[[Task, Method, Sequence[ClientData]], Engine] = SerialEngine,
    device: str = "cpu",
    **recipe: float,
) -> Finished:
    """Run all rounds of a method on tiny data; every round is evaluated."""
    data = tiny_data() if data is None else data
    task = tiny_task(len(data), rounds, model, seed, device, **recipe)
    with engine(task, method, data) as running:
        federation = Federation(task, method, running, participation=participation)
        return Finished(task, federation, list(federation.rounds()))


def visit(task: Task, data: Sequence[ClientData], i: int, round: int = 1, state: State | None = None) -> Client:
    """Client i as a method sees it during a visit."""
    return Client(i, data[i], task, copy_with(task.model, task.initial), round, {} if state is None else state)


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
                p -= lr * velocity[name]
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
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}")


def literal_training(
    task: Task, data: Sequence[ClientData], i: int, round: int, w: Weights, purpose: str = "train", **how: Any
) -> Weights:
    """Client i trains w in this round by `literal_sgd`, on the batches of the named stream."""
    batches = batches_of(visit(task, data, i, round), how.pop("epochs", None), purpose)
    return literal_sgd(copy_with(task.model, w), *data[i].train.tensors(), batches, **how)
