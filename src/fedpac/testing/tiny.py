"""Federations so small that a whole run takes milliseconds: what every check of a method or an engine is made on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.data.clients import ClientData, Pool, Samples, Scenario
from fedpac.engines import Engine, SerialEngine
from fedpac.engines.site import Site
from fedpac.evaluation import Evaluation
from fedpac.federation import Federation
from fedpac.message import Message
from fedpac.methods import Method
from fedpac.methods.base import Which
from fedpac.methods.fedavg import FedAvg
from fedpac.models import Classifier
from fedpac.recipe import Recipe
from fedpac.rounds import RoundReport
from fedpac.sampling import Uniform
from fedpac.server import Server
from fedpac.task import State, Task

CLASSES, INPUTS, FEATURES = 4, 6, 5
SIZES = (7, 12, 1, 9)  # unequal, one client with a single sample, and no multiple of the batch
RECIPE: dict[str, Any] = {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.01, "batch": 4, "epochs": 2}

EngineFactory: TypeAlias = Callable[[Task, Method, Sequence[ClientData]], Engine]


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
        train = Samples(pool, torch.arange(at, at + size), change)
        test = Samples(pool, torch.arange(at + size, at + size + tests), change)
        clients.append(ClientData(train, test))
        at += size + tests
    return clients


def number_data() -> list[ClientData]:
    """Numbers to predict: a linear function of the samples, another for each client, and a little noise."""
    clients = []
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(INPUTS, generator=generator)
    for size in (20, 30, 25):
        x = torch.randn(size + 10, INPUTS, generator=generator)
        own = common + 0.1 * torch.randn(INPUTS, generator=generator)
        pool = Pool(x, x @ own + 0.1 * torch.randn(size + 10, generator=generator))
        clients.append(ClientData(Samples(pool, torch.arange(size)), Samples(pool, torch.arange(size, size + 10))))
    return clients


def number_model() -> Classifier:
    """With one output."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Classifier(nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh()), nn.Linear(FEATURES, 1))


def uneven_data() -> list[ClientData]:
    """Unequal sizes, a client with one sample, a class nobody has, and a client with label names of its own."""
    return tiny_data(SIZES, relabel=[None, None, None, torch.tensor([2, 0, 1, 3])])


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
    sample: Tensor | None = None,
    metrics: Sequence[str] = (),
    classes: int = CLASSES,
    **recipe: Any,
) -> Task:
    recipe_ = Recipe(**{**RECIPE, **recipe})
    return Task(model or tiny_model(), classes, recipe_, seed, clients, rounds, device, sample, metrics=metrics)


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
        return dict(self.federation.engine.snapshot())

    def accuracies(self, which: Which = "received") -> list[float]:
        return self.reports[-1].accuracies(which)

    def scores(self) -> list[list[object]]:
        """Everything that was measured, for exact comparison."""
        return [[r.round, r.chosen, r.scores, r.bytes_down, r.bytes_up, r.peer_weights] for r in self.reports]

    def bytes(self) -> dict[str, bytes]:
        """All that must be saved: the server's state and every client's."""
        saved = {f"client {i}": Message(**state).to_bytes() for i, state in sorted(self.states.items())}
        return {"server": Message(**self.server.state).to_bytes(), **saved}


def start_federation(
    method: Method,
    rounds: int = 2,
    data: Sequence[ClientData] | None = None,
    model: nn.Module | None = None,
    participation: float = 1.0,
    min_replies: int | None = None,
    evaluation: Evaluation | None = None,
    seed: int = 3,
    engine: EngineFactory = SerialEngine,
    device: str = "cpu",
    metrics: Sequence[str] = (),
    classes: int = CLASSES,
    **recipe: Any,
) -> Federation:
    """A method on tiny data before its first round; every round is evaluated unless `evaluation` says otherwise."""
    data = tiny_data() if data is None else data
    sample = Scenario(list(data), CLASSES, data[0].train.pool.x.shape[1:], "tiny").sample
    task = tiny_task(len(data), rounds, model, seed, device, sample, metrics, classes, **recipe)
    return Federation(
        task, method, engine(task, method, data),
        sampler=Uniform(participation), min_replies=min_replies, evaluation=evaluation,
    )  # fmt: skip


def run_federation(method: Method, **how: Any) -> Finished:
    """All rounds of `start_federation(method, ...)`."""
    federation = start_federation(method, **how)
    with federation.engine:
        return Finished(federation.task, federation, list(federation.rounds()))


def in_pieces(start: Callable[[], Federation]) -> Finished:
    """All rounds, each by a federation made anew that goes on from the bytes which the one before left."""
    saved: dict[str, bytes] = {}
    reports: list[RoundReport] = []
    while True:
        federation = start()
        with federation.engine:
            if saved:
                federation.server.round = len(reports)
                federation.server.state = dict(Message.from_bytes(saved.pop("server")))
                states = {int(who.split()[1]): dict(Message.from_bytes(state)) for who, state in saved.items()}
                federation.engine.restore(states)
            reports.append(federation.step())
            finished = Finished(federation.task, federation, reports)
            saved = finished.bytes()
        if len(reports) == federation.task.rounds:
            return finished


def visit(task: Task, data: Sequence[ClientData], i: int, round: int = 1, state: State | None = None) -> Client:
    """Client i as a method sees it during a visit."""
    return Site(task, FedAvg(), data).open(i, round, {} if state is None else state)
