"""The server of a federation: the rounds of one run, over a Flower grid, into a folder."""

import functools
import json
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid

from fedpac.callbacks import Callbacks
from fedpac.config import Config, changed, make_config, read_config
from fedpac.data.scenario import build
from fedpac.engines.flower.engine import FlowerEngine, Say, SiteDirectory
from fedpac.engines.flower.wire import Request, Spec
from fedpac.errors import ConfigError, FedpacError
from fedpac.federation import Federation, RoundReport
from fedpac.methods.base import Method
from fedpac.runs.execute import Census, census_of, conduct, make_task, task_for
from fedpac.runs.folder import RunStore
from fedpac.task import Task

PATIENCE = 60.0  # seconds that sites have to come before a round begins without them
PLACES = ("config", "out", "keys", "data-dir", "patience", "log")  # run config of ours that is not the run's
ERROR = ".error"  # in the run's folder: why the run cannot go on
LISTS = {"federation.sites": str, "federation.shape": int}  # Flower's run config has no lists


def conduct_federation(grid: Grid, settings: Mapping[str, Any]) -> None:
    """What `flwr run` starts. Settings are its run config: `out`, `config` (a TOML file), and any key of ours."""
    hurry()
    out = Path(str(settings.get("out") or "federation"))
    try:
        _conduct(grid, settings, out, _speaker(settings))
    except FedpacError as error:
        out.mkdir(parents=True, exist_ok=True, mode=0o700)
        (out / ERROR).write_text(f"{error}\n")
        raise


def _conduct(grid: Grid, settings: Mapping[str, Any], out: Path, say: Say) -> None:
    store = RunStore(out)
    with store.locked(create=True):
        (out / ERROR).unlink(missing_ok=True)
        config = stated_config(settings)
        if store.begun:
            config = store.config(config.method["name"], model=config.model)
        # the sites keep the states of two rounds, so the server must never be further behind
        config = config.model_copy(update={"run": config.run.model_copy(update={"checkpoint_every": 1})})
        data_dir = Path(str(settings["data-dir"])) if settings.get("data-dir") else None
        if config.federation is None:  # a trial: the scenario is dealt out at the sites, and here for the census
            scenario = build(config.data, config.run.seed, data_dir)
            task, census = make_task(config, scenario), census_of(scenario)
            sites, classes, sample = [f"client-{i}" for i in range(task.clients)], scenario.classes, scenario.sample
        else:
            sites, classes = list(config.federation.sites), config.federation.classes
            sample = torch.zeros(config.federation.shape)
            task, census = task_for(config, classes, sample, len(sites)), None
        spec = Spec(
            federation=_federation_id(store), config=config.to_toml(), sites=tuple(sites), classes=classes,
            shape=tuple(sample.shape), dtype=str(sample.dtype).removeprefix("torch."), fill=int(sample.flatten()[0]),
        )  # fmt: skip
        directory = SiteDirectory(grid, spec, _keys(settings, sites), say)
        needed = config.run.min_replies or len(sites)
        patience = float(settings.get("patience") or PATIENCE)

        def open_engine(method: Method) -> FlowerEngine:
            return FlowerEngine(task, method, directory, config.run.deadline, min(needed, len(sites)), patience)

        if census is None:
            open_engine(config.make_method()).available()  # their sizes go into the folder
            census = _census(directory, sites)
        conduct(
            config, store, task, census, open_engine, data_dir,
            Callbacks([lambda report: say(_line(task, report))]), _farewell,
        )  # fmt: skip
        say("finished")


def _line(task: Task, report: RoundReport) -> str:
    means = []
    for which in ("received", "personal"):
        if values := report.accuracies(which):
            means.append(f"{which} {100 * sum(values) / len(values):.2f} %")
    if report.epsilon is not None:
        means.append(f"epsilon {report.epsilon:.2f}")
    failed = [f"without {failure.reason}" for failure in report.failed]
    return "; ".join([f"round {report.round}/{task.rounds}  {'  '.join(means)}  {report.seconds:.2f} s", *failed])


def _farewell(federation: Federation) -> None:
    """Every site that is there gets the last message, and keeps the model that it makes of it."""
    engine, server = federation.engine, federation.server
    assert isinstance(engine, FlowerEngine)
    engine.directory.look()
    requests = [
        (Request(kind="finish", client=i, round=server.round, spec=engine.spec), federation.method.send(server, i))
        for i in sorted(engine.directory.here)
    ]
    for outcome in engine.ask(requests):
        if outcome.error is not None:
            engine.directory.say(f"no model is kept at {engine.directory.name(outcome.client)}: {outcome.error.reason}")


def stated_config(settings: Mapping[str, Any]) -> Config:
    values: dict[str, Any] = read_config(Path(str(settings["config"]))) if settings.get("config") else {}
    for key, value in settings.items():
        if key not in PLACES:
            if key in LISTS:
                value = [LISTS[key](part.strip()) for part in str(value).split(",")]
            values = changed(values, key, value)
    return make_config(values)


def _keys(settings: Mapping[str, Any], sites: list[str]) -> dict[bytes, int] | None:
    """Whose key is whose: a JSON file with the public key of each site, in hexadecimal."""
    if not settings.get("keys"):
        return None
    path = Path(str(settings["keys"]))
    try:
        keys = json.loads(path.read_text())
        return {bytes.fromhex(keys[site]): client for client, site in enumerate(sites)}
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{path} does not hold the public key of every site: {error!r}") from None


def _federation_id(store: RunStore) -> str:
    path = store.path / ".federation"
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    return path.read_text()


def _census(directory: SiteDirectory, sites: list[str]) -> Census:
    sizes = {client: (site.train, site.test) for client, site in directory.here.items()}
    rows = [(client, name, "", *sizes.get(client, (0, 0))) for client, name in enumerate(sites)]
    return Census("the sites' own data", rows, 0, {"note": "", "data": "at the sites"})


def _speaker(settings: Mapping[str, Any]) -> Say:
    """To Flower's log, and to a file for whoever follows the run."""
    path = settings.get("log")

    def say(line: str) -> None:
        sys.stdout.write(f"fedpac: {line}\n")
        sys.stdout.flush()
        if path:
            with Path(str(path)).open("a") as file:
                file.write(f"{line}\n")

    return say


def hurry() -> None:
    """Flower waits a second before it looks again for a part of a message that has not come yet; we look at once."""
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.superlink.grid import http_grid

    http_grid.pull_objects = functools.partial(inflatable_utils.pull_objects, initial_backoff=0.02)  # type: ignore[attr-defined]
