"""Carry out a config in a folder, from the start or from its last checkpoint."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedpac.callbacks import Beginning, Callbacks, Given
from fedpac.config import Config, make_config
from fedpac.data.clients import Scenario
from fedpac.data.scenario import build
from fedpac.engines import Engine, make_engine
from fedpac.errors import ConfigError, NotEvaluatedError, RunError
from fedpac.evaluation import Evaluation, is_due
from fedpac.federation import Federation
from fedpac.methods import Method, find_method
from fedpac.metrics import SEPARATOR
from fedpac.mods.ckks_keys import KeySource
from fedpac.networks import network_for
from fedpac.privacy import KEY, statement
from fedpac.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from fedpac.runs.folder import CHECKPOINT, METRICS, OF_NUMBERS, SELECTED, RunStore, once_more
from fedpac.runs.origins import Census, census_of, check_same_data, origin_of, record_session
from fedpac.runs.pulse import beating
from fedpac.runs.read import read_run
from fedpac.runs.summary import summarise
from fedpac.sampling import Uniform
from fedpac.selection import Selection
from fedpac.task import Task
from fedpac.timing import span


def run(
    config: Config, out: Path | str, data_dir: Path | str | None = None, callbacks: Sequence[Given] = ()
) -> dict[str, Any]:
    """Run the config in a new folder; returns the summary, which is also written there.

    callbacks   see every round, see fedpac.callbacks. One that stops or fails leaves a run that can be resumed
    """
    store = RunStore(Path(out))
    told = Callbacks(callbacks)
    with store.locked(create=True):
        store.check_free()
        _execute(config, store, Path(data_dir) if data_dir else None, told)
    return _summary(store, told)


def resume(
    out: Path | str,
    data_dir: Path | str | None = None,
    callbacks: Sequence[Given] = (),
    workers: int | None = None,
    method: str | None = None,
    trust: bool = False,
    rounds: int | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """Continue a run after an interruption, as if there had been none. A finished run does not change, unless you ask
    for more `rounds`.

    A run of a method or a network of your own is continued if you name the `method`, 'package.module:Class', and the
    `model`, 'package.module:function', or `trust` the folder: importing them runs their code.
    """
    store = RunStore.open(Path(out))
    told = Callbacks(callbacks)
    if rounds is not None:
        extend(store, rounds, method, trust, model=model)
    if not store.finished:  # one that is may lie on a disk that cannot be written to
        config = store.config(method, trust, model)
        _advance(config, store.path, Path(data_dir) if data_dir else None, told, workers)
    return _summary(store, told)


def extend(
    store: RunStore,
    rounds: int | None = None,
    method: str | None = None,
    trust: bool = False,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    model: str | None = None,
) -> None:
    """Give a finished run more rounds to do, or let sites join a federation or leave it. Where that cannot be, nothing
    is changed."""
    with store.locked():
        config = store.config(method, trust, model)
        changed = _longer(store, config, rounds) if rounds is not None else config
        if add or remove:
            changed = _with_sites(store, changed, add, remove)
        if changed is not config:
            store.reopen(make_config(changed.model_dump(exclude_none=True)).to_toml())


def _longer(store: RunStore, config: Config, rounds: int) -> Config:
    if rounds == config.run.rounds and not store.finished:  # an extension that was interrupted
        return config
    if rounds <= config.run.rounds:
        raise RunError(f"{store.path} already has {config.run.rounds} rounds: extend it to more than that")
    if not config.can_be_extended:
        raise RunError(
            f"{store.path} was trained with a rate that decays to zero in its last round (schedule = 'cosine'), "
            "so a longer run would differ from the first round on"
        )
    saved = saved_state(store, config)
    if store.finished and saved is None:
        raise RunError(f"{store.path} has no {CHECKPOINT} to resume from: restore it, or {once_more(store.path)}")
    if store.finished and saved is not None and saved.round < config.run.rounds:
        raise RunError(
            f"{store.path} ended after round {saved.round} because of run.patience: more rounds have no effect"
        )
    return config.extended(rounds, store.finished)


def _with_sites(store: RunStore, config: Config, add: Sequence[str], remove: Sequence[str]) -> Config:
    if config.federation is None:
        raise ConfigError(f"{store.path} is a simulation: its clients are fixed by its data; none can join or leave")
    if store.finished and config.run.rounds == len(store.rows("rounds.csv")):
        raise RunError(f"{store.path} is finished: to add or remove sites, also add rounds (--rounds)")
    saved = saved_state(store, store.config(config.method["name"], model=config.model))
    return config.with_sites(add, remove, saved.round if saved else 0)


def saved_state(store: RunStore, config: Config, name: str = CHECKPOINT) -> Checkpoint | None:
    """The run's last checkpoint, if there is one."""
    path = store.path / name
    if not path.exists():
        return None
    return read_checkpoint(path, lambda round: map(fingerprint, config.earlier(round)))


def advance(
    config: Config,
    out: Path,
    data_dir: Path | None = None,
    callbacks: Sequence[Given] = (),
    workers: int | None = None,
) -> None:
    """Start the run, or continue it if the folder has it, until it is finished or a callback stops it."""
    _advance(config, out, data_dir, Callbacks(callbacks), workers)


def _advance(config: Config, out: Path, data_dir: Path | None, callbacks: Callbacks, workers: int | None) -> None:
    store = RunStore(out)
    with store.locked(create=True):  # what there is to do is decided inside: another process may just have done it
        if store.begun:
            config = store.config(config.method["name"], model=config.model)
        if not store.finished:
            _execute(config, store, data_dir, callbacks, workers)


def _summary(store: RunStore, callbacks: Callbacks) -> dict[str, Any]:
    """The run's; of one that a callback stopped, what there is of it so far."""
    if store.finished or callbacks.stopped is None:
        return store.read_json("summary.json")
    stopped = {"rounds": callbacks.stopped.round, "stopped": str(callbacks.stopped)}
    try:
        return summarise(read_run(store.path)) | stopped
    except NotEvaluatedError:
        return stopped


def make_task(config: Config, scenario: Scenario, device: str | None = None, key: KeySource | None = None) -> Task:
    return task_for(config, scenario.classes, scenario.sample, len(scenario.clients), device, key)


def task_for(
    config: Config,
    classes: int,
    sample: torch.Tensor,
    clients: int,
    device: str | None = None,
    key: KeySource | None = None,
) -> Task:
    """The same task on every machine that knows the config, the number of classes and what a sample looks like.

    key   the secret that sites share, where weights are encrypted; no server has it
    """
    run = config.run
    model = network_for(config.model, sample, classes, run.seed)
    return Task(
        model, classes, config.training, run.seed, clients, run.rounds, device or run.device, sample,
        config.mods(clients, key), run.metrics, run.ended or (),
    )  # fmt: skip


def make_federation(config: Config, task: Task, method: Method, engine: Engine) -> Federation:
    run = config.run
    evaluation = Evaluation(run.evaluate_every, run.personal_every, run.evaluate_absentees, run.evaluate_clients)
    sampler = Uniform(run.participation, run.everybody_last)
    return Federation(
        task, method, engine, sampler=sampler, evaluation=evaluation, min_replies=run.min_replies,
        optimizer=config.server.make_optimizer(), aggregation=config.server.make_rule(),
    )  # fmt: skip


def fingerprint(config: Config) -> str:
    """Names everything that a result depends on."""
    values = config.identity()
    if (revision := find_method(config.method["name"]).revision) > 1:
        values["revision"] = revision
    return hashlib.blake2b(repr(values).encode(), digest_size=16).hexdigest()


def _execute(
    config: Config,
    store: RunStore,
    data_dir: Path | None,
    callbacks: Callbacks,
    workers: int | None = None,
) -> None:
    if config.federation is not None:
        raise ConfigError("the clients of this run are real sites: start or resume it with 'fedpac serve'")
    data_dir = data_dir or store.data_dir()
    scenario = build(config.data, config.run.seed, data_dir)
    task = make_task(config, scenario, key=store.path / KEY)
    workers = workers or config.run.workers
    held = config.hostile.poisoned(scenario.clients, scenario.classes, config.run.seed)

    def open_engine(method: Method) -> Engine:
        return make_engine(config.run.engine, task, method, held, workers, config.run.deadline)

    conduct(config, store, task, census_of(scenario), open_engine, data_dir, callbacks)


def conduct(
    config: Config,
    store: RunStore,
    task: Task,
    census: Census,
    open_engine: Callable[[Method], Engine],
    data_dir: Path | None = None,
    callbacks: Callbacks | None = None,
    farewell: Callable[[Federation], None] | None = None,
) -> None:
    """The rounds that are left, with rows and checkpoints in the folder, which is locked.

    callbacks  see a round when it is in the folder; one that stops or fails leaves the run, with a checkpoint
    farewell   what is to be done with the clients after the last round
    """
    method, mark = config.make_method(), fingerprint(config)
    path = store.path / CHECKPOINT
    callbacks = callbacks or Callbacks()
    with open_engine(method) as engine, callbacks.ending(), beating(store.path) as pulse:
        engine.listener = pulse
        federation = make_federation(config, task, method, engine)
        saved = _opened(store, config, task, method, census, data_dir)  # last: bad settings leave nothing behind
        if saved:
            federation.restore(saved.round, saved.server)
            engine.restore(saved.clients)
            if (before := clients_at(config, task, saved.round)) < task.clients:
                method.grow(federation.server, before)
                store.write_clients(census.rows, census.columns)
        selection = _selection_so_far(config, task, method, store)
        engine.selected = selection.best if selection is not None else None
        settings = _flat(config.model_dump(mode="json", exclude_none=True))
        done = saved.round if saved else 0
        callbacks.begin(Beginning(method.title, method.reported, task.clients, task.rounds, done, settings))
        left = False
        for report in federation.rounds():
            if selection is not None:
                selection.see(report.round, report.measured(method.reported, selection.key))
                engine.selected = selection.best
            over = report.round == task.rounds or (selection is not None and selection.exhausted)
            over = over or federation.stopped is not None
            saving = over or report.round % config.run.checkpoint_every == 0
            with span("server", root=True), span("disk"):
                store.append(report, sync=saving)  # first the rows, then the checkpoint that says they are there
                if saving:
                    write_checkpoint(path, mark, report.round, federation.snapshot(), engine.snapshot())
                if selection is not None and selection.best == report.round:
                    states = federation.snapshot(), engine.snapshot()
                    write_checkpoint(store.path / SELECTED, mark, report.round, *states)
            left = callbacks.see(report) and not over
            if left and not saving:
                store.sync()
                write_checkpoint(path, mark, report.round, federation.snapshot(), engine.snapshot())
            if left or over:
                break
        if farewell is not None and not left:
            farewell(federation)
    if not left:
        early = federation.stopped if federation.server.round < task.rounds else None
        privacy = statement(task.mods, federation.memory, early)
        store.write_json("summary.json", {**summarise(read_run(store.path)), **privacy, **origin_of(store)})
    if (stopped := callbacks.stopped) is not None and stopped.error is not None:
        then = f"continue with 'fedpac resume {store.path}'" if left else "the run is finished"
        raise RunError(f"{stopped}; nothing is lost: {then}") from stopped.error


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'training': {'lr': 0.1}} as {'training.lr': 0.1}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _opened(
    store: RunStore, config: Config, task: Task, method: Method, census: Census, data_dir: Path | None
) -> Checkpoint | None:
    """Make the folder ready for further rounds; what they go on from, if anything."""
    if not store.begun:
        store.create(config.to_toml(), census.rows, census.columns, METRICS if task.classes else OF_NUMBERS)
    if lost_checkpoint(store, config):
        raise RunError(
            f"{store.path} has {len(store.rows('rounds.csv'))} rounds, but no {CHECKPOINT} to resume from: restore "
            f"it, or {once_more(store.path)}"
        )
    saved = saved_state(store, config)  # before anything is changed in the folder
    check_same_data(store, census)
    known = census.held | {"method": {"title": method.title, "reported": method.reported}}
    if census.preprocessing is not None:
        store.write_text("preprocessing.json", census.preprocessing)
    done = saved.round if saved else 0
    store.truncate(done, _results(config, task, done))
    record_session(store, data_dir, done, known)
    return saved


def _selection_so_far(config: Config, task: Task, method: Method, store: RunStore) -> Selection | None:
    """How validation data choose the round, with what the folder's rows say of it."""
    selection = config.selection(task.classes)
    if selection is not None and (store.path / "scores.csv").exists():
        seen: dict[int, dict[int, float]] = {}
        for row in store.rows("scores.csv"):
            if (row["split"], f"{row['part']}{SEPARATOR}{row['metric']}") == (method.reported, selection.key):
                seen.setdefault(int(row["round"]), {})[int(row["client"])] = float(row["value"])
        for t, values in seen.items():
            selection.see(t, values)
    return selection


def _results(config: Config, task: Task, done: int) -> dict[int, int]:
    """How many results each round up to this one left at least; more may be there, of what depends on who took part."""
    run = config.run
    if run.min_replies is not None:
        return {}  # any client may have failed
    personal_every = run.evaluate_every if run.personal_every is None else run.personal_every
    if not run.evaluate_absentees:
        personal_every = 0  # those who took part may not be those who were drawn
    cadences = [every for every in (run.evaluate_every, personal_every) if every]

    counts = {}
    for t in range(1, done + 1):
        clients = clients_at(config, task, t)
        each = clients if run.evaluate_clients is None else min(run.evaluate_clients, clients)
        counts[t] = each * sum(is_due(t, every, task.is_last(t)) for every in cadences)
    return {t: count for t, count in counts.items() if count}


def clients_at(config: Config, task: Task, round: int) -> int:
    """How many there were in this round; more may have joined since."""
    return task.clients if config.federation is None else len(config.federation.before(round).sites)


def lost_checkpoint(store: RunStore, config: Config) -> bool:
    """Whether an unfinished run has more rounds than a start that was killed before its first checkpoint leaves."""
    if store.finished or (store.path / CHECKPOINT).exists() or not (store.path / "config.toml").exists():
        return False
    return len(store.rows("rounds.csv")) > config.run.checkpoint_every
