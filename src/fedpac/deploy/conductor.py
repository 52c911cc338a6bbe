"""The server of a federation: the rounds of one run, over a Flower grid, into a folder."""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid

from fedpac.callbacks import Callbacks
from fedpac.config import Config
from fedpac.data.scenario import build
from fedpac.deploy.grid import CheckedGrid
from fedpac.engines.flower.engine import GLANCE, FlowerEngine, Introduced, Say, SiteDirectory
from fedpac.engines.flower.wire import Spec
from fedpac.engines.site import Job, Outcome
from fedpac.errors import FedpacError
from fedpac.federation import Federation
from fedpac.methods.base import Method
from fedpac.newcomers import Reception
from fedpac.rounds import RoundReport
from fedpac.runs.execute import conduct, make_task, saved_state, task_for
from fedpac.runs.folder import SELECTED, RunStore
from fedpac.runs.origins import Census, census_of
from fedpac.server import Server

PATIENCE = 60.0  # seconds that sites have to come before the first round begins without them


@dataclass(frozen=True)
class Plan:
    """What is run, and where it goes. If the folder holds a run, that goes on; newcomers are those of this config.

    keys       public key -> site, as registered; None where sites have none
    data_dir   for a trial: the scenario is dealt out at the sites, and here for the census
    """

    config: Config
    out: Path
    keys: Mapping[bytes, str] | None = None
    patience: float = PATIENCE
    data_dir: Path | None = None

    @property
    def newcomers(self) -> tuple[str, ...]:
        return (self.config.federation and self.config.federation.newcomers) or ()


def conduct_federation(grid: Grid, plan: Plan, say: Say, callbacks: Callbacks | None = None) -> None:
    """The rounds that are left, with those sites that are there."""
    grid = CheckedGrid(grid) if isinstance(grid, HttpGrid) else grid
    store = RunStore(plan.out)
    with store.locked(create=True):
        config = _for_sites(
            store.config(plan.config.method["name"], model=plan.config.model) if store.begun else plan.config
        )
        if config.federation is None:
            scenario = build(config.data, config.run.seed, plan.data_dir)
            task, census = make_task(config, scenario), census_of(scenario)
            sites, classes, sample = [f"client-{i}" for i in range(task.clients)], scenario.classes, scenario.sample
        else:
            sites, classes = list(config.federation.sites), config.federation.classes
            sample = torch.zeros(config.federation.shape)
            task, census = task_for(config, classes, sample, len(sites)), None
        spec = Spec(
            federation=federation_id(plan.out), config=config.to_toml(), sites=tuple(sites), classes=classes,
            shape=tuple(sample.shape), dtype=str(sample.dtype).removeprefix("torch."), fill=int(sample.flatten()[0]),
            newcomers=plan.newcomers, left=(config.federation and config.federation.left) or (),
        )  # fmt: skip
        directory = SiteDirectory(grid, spec, plan.keys, say)
        there = len(sites) - len(spec.left)
        needed = 0 if store.finished else min(config.run.min_replies or there, there)
        engine = FlowerEngine(task, config.make_method(), directory, config.run.deadline, needed, plan.patience)
        if census is None:
            engine.available()  # their sizes go into the folder
            census = Census("the sites' own data", directory.rows(), 0, {"note": "", "data": "at the sites"})

        def farewell(federation: Federation) -> None:
            saved = saved_state(store, config, SELECTED) if engine.selected is not None else None
            server = federation.server if saved is None else saved.revived(task)
            _hand_out(federation.method, server, federation.server.round, engine)
            _receive_newcomers(federation.method, server, engine, plan.patience)
            if config.federation is not None:  # with those who came late
                store.write_clients(directory.rows(store.rows("clients.csv")), 0)

        conduct(
            config, store, task, census, lambda _: engine, plan.data_dir,
            callbacks or Callbacks([_teller(task.rounds, say)]), farewell,
        )  # fmt: skip


def _for_sites(config: Config) -> Config:
    """Real sites come and go: where nothing else is said, a round without one of them is repeated when it is back.

    Sites keep the states of three rounds, so the server must never be further behind.
    """
    changes: dict[str, Any] = {"checkpoint_every": 1}
    if config.federation is not None and config.run.min_replies is None:
        changes["min_replies"] = len(config.federation.sites) - len(config.federation.left or ())
    return config.model_copy(update={"run": config.run.model_copy(update=changes)})


def _teller(rounds: int, say: Say) -> Callable[[RoundReport], None]:
    def tell(report: RoundReport) -> None:
        means = [
            f"{which} {100 * sum(values) / len(values):.2f} %"
            for which in ("received", "personal")
            if (values := report.accuracies(which))
        ]
        if report.spent:
            means.append(report.spent)
        failed = {f"without {failure.reason}": None for failure in report.failed}
        say("; ".join(["  ".join([f"round {report.round}/{rounds}", *means, f"{report.seconds:.2f} s"]), *failed]))

    return tell


def _hand_out(method: Method, server: Server, rounds: int, engine: FlowerEngine) -> None:
    """Every site that is there gets the message of the last round, or of the one that validation data chose, and keeps
    the model that it makes of it."""
    engine.wait_for(0)
    requests = [
        (engine.request("finish", i, rounds), method.send(server, i).to_bytes())
        for i in engine.directory.participants()
    ]
    for outcome in engine.ask(requests):
        if outcome.error is not None:
            engine.directory.say(
                f"no model was saved at {engine.directory.name(outcome.client)}: {outcome.error.reason}"
            )


def _receive_newcomers(method: Method, server: Server, engine: FlowerEngine, patience: float) -> None:
    """Each newcomer says what it must of itself and gets a model, when it is there or comes in time."""
    directory = engine.directory
    reception, waiting = Reception(method, server), set(engine.spec.newcomers)
    until = time.monotonic() + patience
    while waiting:
        directory.look()
        for site in directory.newcomers():
            name = engine.spec.names[site.client]
            if name in waiting:
                waiting.remove(name)
                directory.say(_received(reception, engine, site) or f"{directory.name(site.client)} has its model")
        if waiting and time.monotonic() >= until:
            directory.say(f"never fetched their model: {', '.join(sorted(waiting))}")
            return
        if waiting:
            time.sleep(GLANCE)


def _received(reception: Reception, engine: FlowerEngine, site: Introduced) -> str | None:
    """Why the newcomer has no model; None if it has one."""

    def ask(job: Job) -> Outcome:
        return next(iter(engine.ask([engine.errand(job)])))

    try:
        down = reception.welcome(site.client, site.train, ask)
    except FedpacError as error:
        return f"no model for {engine.directory.name(site.client)}: {error}"
    request = engine.request("welcome", site.client, reception.server.round)
    outcome = next(iter(engine.ask([(request, down.to_bytes())])))
    return None if outcome.error is None else f"no model was saved: {outcome.error.reason}"


def federation_id(out: Path) -> str:
    """Names the run for its sites."""
    path = out / ".federation"
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    return path.read_text()
