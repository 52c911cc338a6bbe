"""Carry out a config in a folder, from the start or from its last checkpoint."""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpac import native
from fedpac.config import Config, make_config, read_config
from fedpac.data.scenario import Scenario, build
from fedpac.engines import make_engine
from fedpac.federation import Federation, RoundReport
from fedpac.models import build_model
from fedpac.runs.checkpoint import read_checkpoint, write_checkpoint
from fedpac.runs.store import CHECKPOINT, RunStore
from fedpac.task import Task

Progress = Callable[[RoundReport], None]


def run(config: Config, out: Path, data_dir: Path | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Run the config into a new folder; returns the summary that is also written there."""
    scenario = build(config.data, config.run.seed, data_dir)  # before the folder exists: nothing half-made on bad data
    store = RunStore.create(out, config.to_toml())
    with store.locked():
        return _execute(config, scenario, store, progress)


def resume(
    out: Path, data_dir: Path | None = None, progress: Progress | None = None, workers: int | None = None
) -> dict[str, Any]:
    """Continue a run after an interruption, as if there had been none. A finished run is left alone."""
    store = RunStore.open(out)
    if store.finished:
        return store.read_summary()
    config = make_config(read_config(out / "config.toml"))
    if workers is not None:
        config = config.model_copy(update={"run": config.run.model_copy(update={"workers": workers})})
    with store.locked():
        return _execute(config, build(config.data, config.run.seed, data_dir), store, progress)


def make_task(config: Config, scenario: Scenario) -> Task:
    run = config.run
    model = build_model(config.model, scenario.shape, scenario.classes, run.seed)
    return Task(model, scenario.classes, config.training, run.seed, len(scenario.clients), run.rounds)


def fingerprint(config: Config) -> str:
    """Names everything that a result depends on; the engine and the cadences are not among it, except evaluation."""
    values = config.model_dump(mode="json", exclude={"run": {"engine", "workers", "checkpoint_every"}})
    return hashlib.blake2b(repr(values).encode(), digest_size=16).hexdigest()


def _execute(config: Config, scenario: Scenario, store: RunStore, progress: Progress | None) -> dict[str, Any]:
    method, task, mark = config.make_method(), make_task(config, scenario), fingerprint(config)
    path = store.path / CHECKPOINT
    with make_engine(config.run.engine, task, method, scenario.clients, config.run.workers) as engine:
        federation = Federation(
            task,
            method,
            engine,
            participation=config.run.participation,
            evaluate_every=config.run.evaluate_every,
        )
        if path.exists():
            saved = read_checkpoint(path, mark)
            federation.server.round, federation.server.state = saved.round, saved.server
            engine.states = saved.clients
        store.truncate(federation.server.round)
        for report in federation.rounds():
            store.append(report)
            if report.round % config.run.checkpoint_every == 0 or report.round == task.rounds:
                write_checkpoint(path, mark, report.round, federation.server.state, engine.states)
            if progress is not None:
                progress(report)
    summary = summarise(config, scenario, store)
    store.write_summary(summary)
    return summary


# --- the summary --------------------------------------------------------------------------------------------------


def describe(accuracies: Sequence[float], sizes: Sequence[int]) -> dict[str, float]:
    """Mean and spread over clients. The plain mean counts every client equally, as the paper does."""
    values = np.sort(np.asarray(accuracies))
    worst = values[: max(1, len(values) // 10)]
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "worst_decile": float(worst.mean()),
        "weighted_mean": float(np.average(accuracies, weights=sizes)),
    }


def summarise(config: Config, scenario: Scenario, store: RunStore) -> dict[str, Any]:
    method = config.make_method()
    sizes = [len(client.train) for client in scenario.clients]
    by_round: dict[str, dict[int, list[float]]] = {"received": {}, "personal": {}}
    for row in store.rows("metrics.csv"):
        by_round[row["split"]].setdefault(int(row["round"]), []).append(float(row["accuracy"]))
    results: dict[str, Any] = {}
    for split, rounds in by_round.items():
        best = max(rounds, key=lambda t: np.mean(rounds[t]))
        results[split] = {
            "final": {"round": max(rounds), **describe(rounds[max(rounds)], sizes)},
            "best": {"round": best, **describe(rounds[best], sizes)},
        }
    timing = store.rows("rounds.csv")
    return {
        "method": config.method["name"],
        "title": method.title,
        "dataset": config.data.dataset,
        "scenario": scenario.name,
        "note": scenario.note,
        "clients": len(scenario.clients),
        "rounds": config.run.rounds,
        "seed": config.run.seed,
        "reported": method.reported,
        **results,
        "seconds": round(sum(float(row["seconds"]) for row in timing), 3),
        "bytes_down": sum(int(row["bytes_down"]) for row in timing),
        "bytes_up": sum(int(row["bytes_up"]) for row in timing),
        **provenance(),
    }


def provenance() -> dict[str, Any]:
    """What one needs to know to get the same numbers again."""
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
    """The checkout the code was run from; '+' marks changes that were not committed."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"],
            cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return described.stdout.strip() or "unknown"


