"""Carry out a config in a folder, from the start or from its last checkpoint."""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpac import native
from fedpac.config import Config, make_config, read_config
from fedpac.data.clients import Scenario
from fedpac.data.scenario import build, describe
from fedpac.engines import make_engine
from fedpac.errors import RunError
from fedpac.federation import Federation, RoundReport, is_evaluated
from fedpac.methods import find_method
from fedpac.models import build_model
from fedpac.runs.checkpoint import read_checkpoint, write_checkpoint
from fedpac.runs.reading import read_run, summarise
from fedpac.runs.store import CHECKPOINT, Row, RunStore, once_more
from fedpac.task import Task
from fedpac.timing import span

Progress = Callable[[RoundReport], None]
Stop = Callable[[RoundReport], bool]  # whether to leave the run after this round, for a later resume


def run(
    config: Config, out: Path | str, data_dir: Path | str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Run the config into a new folder; returns the summary that is also written there."""
    store = RunStore(Path(out))
    with store.locked(create=True):
        store.check_free()
        _execute(config, store, Path(data_dir) if data_dir else None, progress)
    return store.read_json("summary.json")


def resume(
    out: Path | str, data_dir: Path | str | None = None, progress: Progress | None = None, workers: int | None = None
) -> dict[str, Any]:
    """Continue a run after an interruption, as if there had been none. A finished run is left alone."""
    store = RunStore.open(Path(out))
    if not store.finished:  # one that is may lie on a disk that cannot be written to
        config = make_config(read_config(store.path / "config.toml"))
        advance(config, store.path, Path(data_dir) if data_dir else None, progress, workers)
    return store.read_json("summary.json")


def advance(
    config: Config,
    out: Path,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
    stop: Stop | None = None,
) -> None:
    """Start the run, or continue it if the folder has it, until it is finished or `stop` says so after a round."""
    store = RunStore(out)
    with store.locked(create=True):  # what there is to do is decided inside: another process may just have done it
        if store.begun:
            config = make_config(read_config(out / "config.toml"))
        if not store.finished:
            _execute(config, store, data_dir, progress, workers, stop)


def make_task(config: Config, scenario: Scenario, device: str | None = None) -> Task:
    run, clients = config.run, len(scenario.clients)
    model = build_model(config.model, scenario.shape, scenario.classes, run.seed)
    return Task(model, scenario.classes, config.training, run.seed, clients, run.rounds, device or run.device)


def fingerprint(config: Config) -> str:
    """Names everything that a result depends on; where it is computed and the cadences are not, except evaluation."""
    values = config.model_dump(mode="json", exclude={"run": {"engine", "device", "workers", "checkpoint_every"}})
    if (revision := find_method(config.method["name"]).revision) > 1:
        values["revision"] = revision
    return hashlib.blake2b(repr(values).encode(), digest_size=16).hexdigest()


def data_digest(scenario: Scenario) -> str:
    """Names the very samples that the clients hold: a config names its data set only, which may be a stand-in."""
    digest = hashlib.blake2b(digest_size=16)
    for client in scenario.clients:
        for part in (client.train, client.test):
            digest.update(repr((len(part), part.rotate)).encode())
            digest.update(part.pool.x.index_select(0, part.index).numpy().data)
            digest.update(part.labels().numpy().data)
    return digest.hexdigest()


def client_rows(scenario: Scenario) -> list[Row]:
    counts = describe(scenario).tolist()
    return [
        (i, c.name, "" if c.group is None else c.group, len(c.train), len(c.test), *row)
        for i, (c, row) in enumerate(zip(scenario.clients, counts, strict=True))
    ]


def _execute(
    config: Config,
    store: RunStore,
    data_dir: Path | None,
    progress: Progress | None,
    workers: int | None = None,
    stop: Stop | None = None,
) -> None:
    data_dir = data_dir or store.data_dir()
    scenario = build(config.data, config.run.seed, data_dir)
    task, method, mark = make_task(config, scenario), config.make_method(), fingerprint(config)
    if not store.begun:  # only now: bad data or settings leave nothing behind
        store.create(config.to_toml(), client_rows(scenario), scenario.classes)
    path = store.path / CHECKPOINT
    if lost_checkpoint(store, config):
        raise RunError(
            f"{store.path} has {len(store.rows('rounds.csv'))} rounds, but no {CHECKPOINT} to go on from: restore that "
            f"file, or {once_more(store.path)}"
        )
    saved = read_checkpoint(path, mark) if path.exists() else None  # before anything is changed in the folder
    held = _same_data(store, scenario)
    done, every = saved.round if saved else 0, config.run.evaluate_every
    store.truncate(done, [t for t in range(1, done + 1) if is_evaluated(t, every, task.rounds)])
    _record_session(store, data_dir, done, held)
    with make_engine(config.run.engine, task, method, scenario.clients, workers or config.run.workers) as engine:
        federation = Federation(
            task,
            method,
            engine,
            participation=config.run.participation,
            evaluate_every=config.run.evaluate_every,
        )
        if saved:
            federation.server.round, federation.server.state = saved.round, saved.server
            engine.states = saved.clients
        for report in federation.rounds():
            leaving = stop is not None and stop(report)
            saving = leaving or report.round % config.run.checkpoint_every == 0 or report.round == task.rounds
            with span("server", root=True), span("disk"):
                store.append(report, sync=saving)  # first the rows, then the checkpoint that says they are there
                if saving:
                    write_checkpoint(path, mark, report.round, federation.server.state, engine.states)
            if progress is not None:
                progress(report)
            if leaving and report.round < task.rounds:
                return
    store.write_json("summary.json", {**summarise(read_run(store.path)), **_origin(store)})


def lost_checkpoint(store: RunStore, config: Config) -> bool:
    """Whether an unfinished run has more rounds than a start that was killed before its first checkpoint leaves."""
    if store.finished or (store.path / CHECKPOINT).exists() or not (store.path / "config.toml").exists():
        return False
    return len(store.rows("rounds.csv")) > config.run.checkpoint_every


# --- where the numbers come from ----------------------------------------------------------------------------------


def _same_data(store: RunStore, scenario: Scenario) -> dict[str, str]:
    """What names the run's data; an error if it was begun with others."""
    held = {"note": scenario.note, "data": data_digest(scenario)}
    begun = _environment(store)
    if any(begun.get(key, value) != value for key, value in held.items()):
        was = f"those it was begun with{f' ({note})' if (note := begun.get('note')) else ''}"
        raise RunError(
            f"{store.path} was begun with other data: the files of '{scenario.name}' are not {was}. "
            "Give their folder with --data-dir, or start a new run"
        )
    return held


def _environment(store: RunStore) -> dict[str, Any]:
    return store.read_json("environment.json") if (store.path / "environment.json").exists() else {}


def _record_session(store: RunStore, data_dir: Path | None, after_round: int, held: dict[str, str]) -> None:
    """environment.json: each start of the run, with what one needs to know to get the same numbers again."""
    earlier = _environment(store).get("sessions", [])
    session = {"started": datetime.now(UTC).isoformat(timespec="seconds"), "after_round": after_round, **provenance()}
    store.write_json("environment.json", {**held, "sessions": [*earlier, session]})
    chosen = data_dir or os.environ.get("FEDPAC_DATA")
    if chosen:
        store.remember_data_dir(Path(chosen).expanduser().absolute())


def _origin(store: RunStore) -> dict[str, Any]:
    """How the run was started, for the summary; environment.json has every later session too."""
    first, *later = store.read_json("environment.json")["sessions"]
    origin = {key: first[key] for key in ("command", "commit", "versions", "kernels", "machine")}
    return origin | {"resumed": len(later)}


def provenance() -> dict[str, Any]:
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": _commit(),
        "versions": {
            "fedpac": version("fedpac"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "kernels": "native" if native.available() else f"torch ({native.reason()})",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def _commit() -> str:
    """The checkout the code was run from; '+' marks changes to the code that were not committed."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
