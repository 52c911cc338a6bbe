"""For Python programs: train on your own model and data, and use the model that each client ends up with."""

import copy
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast, overload

from pydantic import ValidationError
from torch import nn

from fedpac.bundles import check_free
from fedpac.bundles.client_model import ClientModel, client_model
from fedpac.callbacks import Beginning, Callbacks, Given, Stopped
from fedpac.config_sections import RunConfig, ServerConfig, check_selection
from fedpac.data.clients import Scenario
from fedpac.data.collections import scenario_of
from fedpac.data.config import DataConfig
from fedpac.data.own import of_newcomer
from fedpac.data.own_samples import ArrayLike
from fedpac.data.published import PUBLISHED
from fedpac.data.scenario import build
from fedpac.data.validation import held_out
from fedpac.engines import make_engine
from fedpac.engines.site import Site
from fedpac.engines.store import MemoryStore
from fedpac.errors import ConfigError, FedpacError, RunError
from fedpac.evaluation import Evaluation
from fedpac.federation import Federation
from fedpac.files import explained
from fedpac.methods import Method, make_method
from fedpac.methods.base import Which
from fedpac.metrics import headline
from fedpac.mods.ckks_keys import Parameters
from fedpac.networks import network_for
from fedpac.newcomers import Reception
from fedpac.privacy import KEY, PrivacyConfig
from fedpac.provenance import provenance
from fedpac.recipe import Recipe
from fedpac.rounds import RoundReport
from fedpac.runs.execute import make_task, saved_state
from fedpac.runs.folder import CHECKPOINT, SELECTED, RunStore
from fedpac.sampling import Sampler, Uniform
from fedpac.selection import Selection
from fedpac.server import Server
from fedpac.strict import Checked, checked, shown
from fedpac.task import State, Task
from fedpac.threads import one_thread
from fedpac.training import evaluate

ORIGIN = ("command", "commit", "versions", "kernels", "machine")  # of a run's first session
Arrays = Sequence[ArrayLike]  # x_train, y_train, x_test, y_test; perhaps x_validation, y_validation


def fit(
    model: nn.Module | str,
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
    sampler: Sampler | None = None,
    min_replies: int | None = None,
    deadline: float | None = None,
    evaluate_every: int = 1,
    evaluation: Evaluation | None = None,
    metrics: Sequence[str] = (),
    validation_share: float | None = None,
    select_by: str | None = None,
    patience: int | None = None,
    classes: int | None = None,
    training: dict[str, Any] | None = None,
    server: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    engine: str = "auto",
    device: str = "cpu",
    workers: int | None = None,
    privacy: dict[str, Any] | None = None,
    callbacks: Sequence[Given] = (),
) -> "Result":
    """Train on the clients' data; returns one model per client.

    model      a torch module with a `body` (input -> features) and a `head` (features -> logits), which is not changed;
               or the name of a network ('fedpac models' lists them), made for the clients' samples
    clients    (x_train, y_train, x_test, y_test) of every client, numpy or torch; (train, test) of torch Datasets or
               Hugging Face's, or folders of the latter; or a scenario, see fedpac.from_folder and from_datasets
    method     a name ('fedpac methods' lists them) with its `settings`, or an instance of your own Method
    device     what clients are trained on, 'cuda' for instance; the result is on the CPU
    sampler    who takes part in a round: an object with `choose`, see fedpac.sampling; unset, a random `participation`
    evaluation  what is measured, how often and of whom, see fedpac.evaluation; unset, both accuracies of every client
    min_replies  rounds continue if at least this many clients reply; unset, the first failure is an error
    deadline   seconds that a client has to reply
    training   other training settings, like {'optimizer': 'adamw', 'schedule': 'cosine'}; as [training] in a config
    server     what the server does with averages, such as {'optimizer': 'momentum'}; as [server] in a config
    metrics    measured in addition to accuracy and loss, such as 'auroc'; they are in history[t].scores
    classes    how many there are; unset, the largest label + 1. 0: y are numbers to predict, with one output of the
               network, by the squared error, and R^2 stands for accuracy; methods that need classes refuse
    validation_share  held out of each client's training data; `result.selected` is then the round that they choose
    select_by  the metric that they choose by; unset, accuracy
    patience   stop after this many evaluations without improvement on validation data
    privacy    the section [privacy] of a config: {"encryption": "ckks"}, for instance
    callbacks  see every round: functions that take its report, or fedpac.callbacks. One that returns True or raises
               ends the training, and what was trained is kept: `result.stopped` says why

        result = fedpac.fit(model, clients, method="fedpac", rounds=20, lr=0.05, seed=0)
        result.models[3].predict(x)
    """
    scenario = clients if isinstance(clients, Scenario) else scenario_of(clients, classes)
    if validation_share is not None:
        _section(DataConfig, validation_share=validation_share)
        scenario = held_out(scenario, validation_share, seed)
    method = _made(method, settings)
    usual = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "batch": batch, "epochs": epochs}
    recipe = _section(Recipe, **usual | (training or {}))
    run = _section(
        RunConfig, rounds=rounds, seed=seed, participation=participation, evaluate_every=evaluate_every,
        min_replies=min_replies, deadline=deadline, engine=engine, device=device, workers=workers,
        metrics=list(metrics), select_by=select_by, patience=patience,
    )  # fmt: skip
    aggregator = _section(ServerConfig, **(server or {}))
    optimizer, rule = aggregator.make_optimizer(), aggregator.make_rule()
    selection = _selection(scenario, run)
    name = model if isinstance(model, str) else None
    network = _copied(model) if name is None else network_for(name, scenario.sample, scenario.classes, run.seed)
    clients_in_all = len(scenario.clients)
    protection = _section(PrivacyConfig, **(privacy or {}))
    key = Parameters.for_clients(clients_in_all).new_key() if protection.encryption == "ckks" else None
    task = Task(
        network, scenario.classes, recipe, run.seed, clients_in_all, run.rounds, run.device, scenario.sample,
        protection.mods(method, clients_in_all, key, run), metrics=run.metrics,
    )  # fmt: skip
    history: list[RoundReport] = []
    selected: Result | None = None
    told = Callbacks(callbacks)
    settings_used = {**recipe.model_dump(mode="json"), **method.model_dump(mode="json"), "seed": run.seed}
    told.begin(Beginning(method.title, method.reported, clients_in_all, run.rounds, settings=settings_used))
    engine_used = make_engine(run.engine, task, method, scenario.clients, run.workers, run.deadline)
    with engine_used as running, told.ending():
        federation = Federation(
            task, method, running, sampler=sampler or Uniform(run.participation),
            evaluation=evaluation or Evaluation(run.evaluate_every), min_replies=run.min_replies,
            optimizer=optimizer, aggregation=rule,
        )  # fmt: skip
        for report in federation.rounds():
            history.append(report)
            if selection is not None:
                selection.see(report.round, report.measured(method.reported, selection.key))
                if selection.best == report.round:
                    then = Server(task, copy.deepcopy(federation.server.state))  # a merge may work in place
                    then.round = report.round
                    selected = Result(task, method, scenario, then, dict(running.snapshot()), history[:], network=name)
            if told.see(report) or (selection is not None and selection.exhausted):
                break
        states = dict(running.snapshot())
    if told.stopped is not None and told.stopped.error is not None:
        warnings.warn(f"the training {told.stopped}", stacklevel=2)
    return Result(task, method, scenario, federation.server, states, history, selected, told.stopped, name)


def _selection(scenario: Scenario, run: RunConfig) -> Selection | None:
    if any(client.validation is not None for client in scenario.clients):
        check_selection(run, True)
        return Selection(run.select_by or headline(scenario.classes), run.patience)
    check_selection(run, False)
    return None


def _copied(model: object) -> nn.Module:
    try:
        return cast(nn.Module, copy.deepcopy(model))
    except Exception as error:  # weights that are computed when they are read, as by the old weight_norm
        raise ConfigError(
            f"the model {type(model).__name__} cannot be copied, but every client needs its own copy: "
            f"{type(error).__name__}: {error}"
        ) from None


def _made(method: str | Method, settings: dict[str, Any] | None) -> Method:
    if not isinstance(method, str | Method):
        raise ConfigError(f"method = {method!r}: expected a name, or an instance of a Method such as FedAvg()")
    if not (settings is None or isinstance(settings, dict)):
        raise ConfigError(
            f"settings = {shown(settings)}: expected the method's settings by name, such as {{'lam': 1.0}}"
        )
    if isinstance(method, str):
        return make_method(method, settings)
    if settings:
        raise ConfigError(
            "settings only apply to a method given by name; this method is an object with its own settings"
        )
    return method


def _section(model: type[Checked], **values: Any) -> Checked:
    try:
        return checked(model, values)
    except ValidationError as error:
        problem = error.errors()[0]
        where = f"{problem['loc'][0]} = {shown(problem['input'])}: " if problem["loc"] else ""
        raise ConfigError(where + problem["msg"].removeprefix("Value error, ").lower()) from None


def load_run(
    path: Path | str,
    data_dir: Path | str | None = None,
    method: str | None = None,
    trust: bool = False,
    selected: bool = False,
    model: str | None = None,
) -> "Result":
    """The models of a run folder's last checkpoint, to predict with; its history is in the folder's tables.

    selected   use the round selected on validation data instead of the last one

    A run of a method or a network of your own is loaded if you name the `method`, 'package.module:Class', and the
    `model`, 'package.module:function', or `trust` the folder: importing them runs their code.
    """
    path = Path(path)
    store = RunStore.open(path)
    config = store.config(method, trust, model)
    if config.federation is not None:
        raise RunError(f"{path}: the clients' data and models are at their sites, in the folder given to 'fedpac join'")
    if selected and not config.validation_share:
        raise RunError(f"{path} was run without validation data, so no round was selected: set data.validation_share")
    saved = saved_state(store, config, SELECTED if selected else CHECKPOINT)
    if saved is None:
        raise RunError(f"{path} has no checkpoint yet: continue it with 'fedpac resume {path}'")
    scenario = build(config.data, config.run.seed, Path(data_dir) if data_dir else store.data_dir())
    task = make_task(config, scenario, device="cpu", key=path / KEY)  # wherever it was trained
    origin = {key: store.read_json("environment.json")["sessions"][0][key] for key in ORIGIN}
    if (published := PUBLISHED.get(config.data.dataset)) is not None:
        origin["data_licence"] = published.licence
    server, chosen = saved.revived(task), config.make_method()
    return Result(task, chosen, scenario, server, saved.clients, [], network=config.model, provenance=origin)


@dataclass(repr=False)
class Result:
    """A trained federation. `models[i]` is what client i predicts with now.

    `method.reported` says which model that is: the one from the server's last message ('received'), or the one after
    local training ('personal'). `model(i, which)` gives either.
    """

    task: Task
    method: Method
    scenario: Scenario
    server: Server
    states: dict[int, State]
    history: list[RoundReport]
    chosen: "Result | None" = None
    stopped: Stopped | None = None  # by a callback, before the last round
    network: str | None = None  # what the run's config calls it
    provenance: dict[str, Any] | None = None  # of the run that it was loaded from

    def __repr__(self) -> str:
        return f"Result({self.method.title}, {len(self)} clients, round {self.server.round})"

    def __len__(self) -> int:
        return len(self.scenario.clients)

    @property
    def selected(self) -> "Result":
        """The federation as it was in the round that validation data chose."""
        if self.chosen is None:
            raise ConfigError("there is no validation data to select a round: set validation_share, such as 0.2")
        return self.chosen

    @property
    def models(self) -> "Models":
        return Models(self)

    @cached_property
    def accuracy(self) -> list[float]:
        """Accuracy of `models[i]` on client i's test data."""
        with one_thread():
            return [self._score(i) for i in range(len(self))]

    def _score(self, client: int) -> float:
        x, y = self.scenario.clients[client].test.tensors()
        return evaluate(self.model(client).module, self.task.cast(x), y)[0]

    def model(self, client: int | str, which: Which | None = None) -> "ClientModel":
        client = self.number(client)
        which = which or self.method.reported
        if which not in ("received", "personal"):
            raise ConfigError(f"which = {which!r}; expected 'received' or 'personal'")
        store = MemoryStore()
        store.restore(self.states)
        with one_thread():
            site = Site(self.task, self.method, self.scenario.clients, store)
            module = site.model_of(client, which, self.server.round + 1, self.method.send(self.server, client))
        return client_model(
            module, client, which, self.method, self.task, self.scenario, self.network, self._provenance()
        )

    def _provenance(self) -> dict[str, Any]:
        task = self.task
        return {
            "data": self.scenario.name, "note": self.scenario.note, "clients": len(self), "round": self.server.round,
            "seed": task.seed, "training": task.recipe.model_dump(mode="json"),
            "settings": self.method.model_dump(mode="json"), **(self.provenance or provenance()),
        }  # fmt: skip

    def number(self, client: int | str) -> int:
        """A client's number, by its number or its name."""
        names = [data.name for data in self.scenario.clients]
        if client in names:
            return names.index(str(client))
        number = int(client) if str(client).isdecimal() else -1
        if not 0 <= number < len(self):
            raise FedpacError(f"there is no client {client}; there are 0 to {len(self) - 1}: {shown_names(names)}")
        return number

    def save(self, folder: Path | str, licence: str = "", onnx: bool = True) -> list[Path]:
        """A bundle for each client, under its name in a new folder; see ClientModel.save."""
        folder = Path(folder)
        with explained(folder):
            check_free(folder)
        names = [safe_name(data.name or f"client {i}") for i, data in enumerate(self.scenario.clients)]
        names = [f"{name}-{i}" if names.count(name) > 1 else name for i, name in enumerate(names)]
        return [model.save(folder / name, licence, onnx) for name, model in zip(names, self.models, strict=True)]

    def welcome(self, x: "ArrayLike | None" = None, y: "ArrayLike | None" = None) -> "ClientModel":
        """The model of a client that never took part, from its labelled samples, as many as it has.

        With FedPAC it tells the statistics of their features and gets the body and a head combined for it; nothing is
        trained. `method.newcomer()` says what other methods give, and whether samples are needed.

            result.welcome(x, y).predict(x_new)
        """
        like, client = self.scenario.clients[0], len(self)
        own = of_newcomer(x, y, like, self.task.classes)
        site = Site(self.task, self.method, {client: own}, MemoryStore())
        with one_thread():
            down = Reception(self.method, self.server).welcome(client, len(own.train), site.work)
            module = site.model_of(client, "new", self.server.round + 1, down)
        own = replace(own, name="newcomer")
        return client_model(
            module, client, "received", self.method, self.task, self.scenario, self.network, self._provenance(), own
        )


def safe_name(name: str) -> str:
    """A client's name as that of a folder."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "client"


def shown_names(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (" ..." if len(names) > 10 else "")


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
