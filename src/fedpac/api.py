"""For Python programs: train on your own model and data, and use the model that each client ends up with."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.config import RunConfig, make_config, read_config
from fedpac.data.clients import ClientData, Scenario
from fedpac.data.own import ArrayLike, from_arrays
from fedpac.data.scenario import build
from fedpac.engines import make_engine
from fedpac.errors import ConfigError, DataError, FedpacError, RunError
from fedpac.federation import Federation, RoundReport
from fedpac.message import Message, moved
from fedpac.methods import Method, make_method
from fedpac.methods.base import Which
from fedpac.models import copy_with
from fedpac.runs.checkpoint import read_checkpoint
from fedpac.runs.run import fingerprint, make_task
from fedpac.runs.store import CHECKPOINT, RunStore, explained, write_atomically
from fedpac.server import Server
from fedpac.strict import Checked, checked
from fedpac.task import Recipe, State, Task
from fedpac.threads import one_thread
from fedpac.training import evaluate, logits

Arrays = tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]


def fit(
    model: nn.Module,
    clients: Sequence[Arrays] | Scenario,
    method: str | Method = "fedpac",
    *,
    rounds: int = 20,
    lr: float = 0.01,
    epochs: int = 5,
    batch: int = 50,
    momentum: float = 0.5,
    weight_decay: float = 5e-4,
    seed: int = 0,
    participation: float = 1.0,
    evaluate_every: int = 1,
    classes: int | None = None,
    settings: dict[str, Any] | None = None,
    engine: str = "auto",
    device: str = "cpu",
    workers: int | None = None,
    progress: Callable[[RoundReport], None] | None = None,
) -> "Result":
    """Train on the clients' data and give back one model per client.

    model      a torch module with a `body` (input -> features) and a `head` (features -> logits); it is not changed
    clients    (x_train, y_train, x_test, y_test) of every client, numpy or torch; or a scenario, see fedpac.from_folder
    method     a name ('fedpac methods' lists them) with its `settings`, or an instance of a Method of your own
    device     what clients are trained on, 'cuda' for instance; the result is on the CPU
    progress   called after every round with its report

        result = fedpac.fit(model, clients, method="fedpac", rounds=20, lr=0.05, seed=0)
        result.models[3].predict(x)
    """
    scenario = clients if isinstance(clients, Scenario) else from_arrays(clients, classes)
    method = _made(method, settings)
    recipe = _section(Recipe, lr=lr, momentum=momentum, weight_decay=weight_decay, batch=batch, epochs=epochs)
    run = _section(
        RunConfig, rounds=rounds, seed=seed, participation=participation, evaluate_every=evaluate_every,
        engine=engine, device=device, workers=workers,
    )  # fmt: skip
    task = Task(copy.deepcopy(model), scenario.classes, recipe, run.seed, len(scenario.clients), run.rounds, run.device)
    _check_fits(task, scenario)
    history = []
    with make_engine(run.engine, task, method, scenario.clients, run.workers) as running:
        federation = Federation(
            task, method, running, participation=run.participation, evaluate_every=run.evaluate_every
        )
        for report in federation.rounds():
            history.append(report)
            if progress is not None:
                progress(report)
        return Result(task, method, scenario, federation.server, running.states, history)


def _made(method: str | Method, settings: dict[str, Any] | None) -> Method:
    if not isinstance(method, str | Method):
        raise ConfigError(f"method = {method!r}: expected a name, or an instance of a Method such as FedAvg()")
    if not (settings is None or isinstance(settings, dict)):
        raise ConfigError(f"settings = {settings!r}: expected the method's settings by name, such as {{'lam': 1.0}}")
    if isinstance(method, str):
        return make_method(method, settings)
    if settings:
        raise ConfigError("settings belong to a method given by name; this one is an object and has its own")
    return method


def _section(model: type[Checked], **values: Any) -> Checked:
    try:
        return checked(model, values)
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"{problem['loc'][0]} = {problem['input']!r}: {problem['msg'].lower()}") from None


def load_run(path: Path | str, data_dir: Path | str | None = None) -> "Result":
    """What a run folder's last checkpoint holds, to predict with; its history is in the folder's tables."""
    path = Path(path)
    store = RunStore.open(path)
    config = make_config(read_config(path / "config.toml"))
    if not (path / CHECKPOINT).exists():
        raise RunError(f"{path} has no checkpoint yet: continue it with 'fedpac resume {path}'")
    saved = read_checkpoint(path / CHECKPOINT, fingerprint(config))
    scenario = build(config.data, config.run.seed, Path(data_dir) if data_dir else store.data_dir())
    task, method = make_task(config, scenario, device="cpu"), config.make_method()  # wherever it was trained
    server = Server(task, saved.server)
    server.round = saved.round
    return Result(task, method, scenario, server, saved.clients, [])


@dataclass
class Result:
    """A trained federation. `models[i]` is what client i predicts with now.

    Which model that is, `method.reported` says: the one it has on receiving the server's last message ('received'), or
    the one that local training makes of it ('personal'). `model(i, which)` gives either.
    """

    task: Task
    method: Method
    scenario: Scenario
    server: Server
    states: dict[int, State]
    history: list[RoundReport] = field(repr=False)

    def __len__(self) -> int:
        return len(self.scenario.clients)

    @property
    def models(self) -> "Models":
        return Models(self)

    @cached_property
    def accuracy(self) -> list[float]:
        """Accuracy of `models[i]` on client i's test data."""
        with one_thread():
            return [evaluate(self.model(i).module, *c.test.tensors())[0] for i, c in enumerate(self.scenario.clients)]

    def model(self, client: int, which: Which | None = None) -> "ClientModel":
        if not isinstance(client, int) or not 0 <= client < len(self):
            raise FedpacError(f"there is no client {client}; there are 0 to {len(self) - 1}")
        which = which or self.method.reported
        if which not in ("received", "personal"):
            raise ConfigError(f"which = {which!r}; expected 'received' or 'personal'")
        # As at the start of the next round: the state is a copy, so looking at a model changes nothing.
        there = self.task.device
        state = moved(copy.deepcopy(self.states.get(client, {})), there)
        data, lent = self.scenario.clients[client], copy_with(self.task.model, self.task.initial).to(there)
        visitor = Client(client, data, self.task, lent, self.server.round + 1, state)
        with one_thread():
            down = Message(**moved(self.method.send(self.server, client), there))
            if which == "received":
                module = self.method.received(visitor, down)
            else:
                module = self.method.personal(visitor, down, self.method.local(visitor, down))
        return ClientModel(module.eval().to("cpu"), client, which, self.method.name, data, self.task)


class Models(Sequence["ClientModel"]):
    """Every client's model, made when it is asked for: a thousand of them need not be in memory."""

    def __init__(self, result: Result) -> None:
        self.result = result

    def __len__(self) -> int:
        return len(self.result)

    @overload
    def __getitem__(self, client: int) -> "ClientModel": ...
    @overload
    def __getitem__(self, client: slice) -> list["ClientModel"]: ...
    def __getitem__(self, client: int | slice) -> "ClientModel | list[ClientModel]":
        if isinstance(client, slice):
            return [self.result.model(i) for i in range(len(self))[client]]
        if not -len(self) <= client < len(self):
            raise IndexError(f"there is no client {client}; there are {len(self)}")
        return self.result.model(client % len(self))


@dataclass(frozen=True, eq=False)
class ClientModel:
    """One client's model. `module` is the torch module itself; it takes normalised samples."""

    module: nn.Module
    client: int
    which: Which
    method: str
    data: ClientData
    task: Task

    def predict(self, x: ArrayLike) -> NDArray[np.int64]:
        """The class of every sample; x as in the training data, uint8 images or floats."""
        classes: NDArray[np.int64] = self.predict_proba(x).argmax(axis=1)
        return classes

    def predict_proba(self, x: ArrayLike) -> NDArray[np.float64]:
        """(samples, classes): the probability of each class."""
        with one_thread():
            scores = logits(self.module, self.prepare(x))
        proba: NDArray[np.float64] = F.softmax(scores.double(), dim=1).numpy()  # the same for log-probabilities
        return proba

    def prepare(self, x: ArrayLike) -> Tensor:
        """Samples in the form of the training data, normalised in the same way."""
        pool = self.data.train.pool
        expected = tuple(pool.x.shape[1:])
        try:
            x = torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"x is no array of numbers ({error})") from None
        if x.dtype == torch.uint8:
            if pool.x.dtype != torch.uint8:
                raise DataError("x has bytes, but the model was trained on floats; convert it in the same way")
            if x.dim() == 3 and expected[0] == 1:
                x = x.unsqueeze(1)
            elif x.dim() == 4 and tuple(x.shape[1:]) != expected:
                x = x.permute(0, 3, 1, 2)
        if tuple(x.shape[1:]) != expected:
            raise DataError(f"x has shape {tuple(x.shape)}, expected (samples, {', '.join(map(str, expected))})")
        if not len(x):
            raise DataError("x has no samples")
        if x.dtype != torch.uint8:
            if pool.x.dtype == torch.uint8 and not x.is_floating_point():
                raise DataError(f"x has {x.dtype}; images are bytes (uint8), or floats that are normalised already")
            if not (x := x.float()).isfinite().all():
                raise DataError("x has values that are infinite or not a number")
            return x
        mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (pool.mean, pool.std))
        return (x.float() / 255 - mean) / std

    def save(self, path: Path | str) -> Path:
        """The weights as safetensors, under the names of the module's own state_dict."""
        from safetensors.torch import save

        path = Path(path)
        weights = self.module.state_dict()
        if weights.keys() != self.task.initial.keys():
            raise FedpacError(
                f"the {self.which} model of {self.method} is more than one network and cannot be saved as one; "
                "use it through predict"
            )
        pool = self.data.train.pool
        about = {
            "method": self.method, "client": self.client, "which": self.which, "classes": self.task.classes,
            "shape": list(pool.x.shape[1:]), "mean": pool.mean, "std": pool.std,
        }  # fmt: skip
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            tensors = {name: tensor.detach().contiguous().clone() for name, tensor in sorted(weights.items())}
            write_atomically(path, save(tensors, {"fedpac": json.dumps(about)}))
        return path


def _check_fits(task: Task, scenario: Scenario) -> None:
    """One sample through the model, so that a mismatch is told in one line and before any round."""
    x = scenario.clients[0].train.tensors()[0][:2]
    model = copy.deepcopy(task.model).eval()
    try:
        with torch.no_grad():
            scores = model.head(model.body(x))  # type: ignore[operator]
    except RuntimeError as error:
        raise ConfigError(f"the model does not take samples of shape {scenario.shape}: {error}") from None
    if scores.dim() != 2 or scores.shape[1] != scenario.classes:
        raise ConfigError(
            f"the model gives {tuple(scores.shape[1:])} scores for a sample, but the labels name "
            f"{scenario.classes} classes; set the head's size, or `classes`"
        )
