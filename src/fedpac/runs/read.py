"""Reads run folders.

Everything is computed from the folder's CSV files, so an unfinished run can be looked at too.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedpac.config_values import read_config
from fedpac.errors import NotEvaluatedError, RunError
from fedpac.headlines import HEADLINES
from fedpac.methods import list_methods
from fedpac.methods.base import Which
from fedpac.runs.folder import RunStore
from fedpac.runs.run_data import SPLITS, Floats, RunData, count
from fedpac.strict import shown

STATED = {  # what is read of a config, whatever version wrote it
    "method.name": str, "model": str, "data.dataset": str, "data.scenario": str, "training": dict, "run.seed": int,
    "run.rounds": int,
}  # fmt: skip
LONGEST_NOTE = 1_000  # characters


def read_run(path: Path) -> RunData:
    """A run's folder, finished or not, with at least one evaluated round."""
    store = RunStore.open(path)
    config = read_config(path / "config.toml")
    environment = store.read_json("environment.json") if (path / "environment.json").exists() else {}
    try:
        _check_stated(config)
        title, reported = _title_and_reported(config["method"]["name"], store, environment)
        clients = store.rows("clients.csv")
        if [int(row["client"]) for row in clients] != list(range(len(clients))):
            raise ValueError("clients.csv does not list the clients 0, 1, ... in order")
        sizes, test_sizes = (np.array([count(row[key]) for row in clients], dtype=float) for key in ("train", "test"))
        groups = [int(row["group"]) if row["group"] else None for row in clients]
        counts = np.array([[count(v) for k, v in row.items() if k.startswith("class_")] for row in clients])
        rounds = store.rows("rounds.csv")
        seconds = sum(_seconds(row["seconds"]) for row in rounds)
        up, down = (sum(count(row[key]) for row in rounds) for key in ("bytes_up", "bytes_down"))
        complete = 0 if _all_present(store, config) else len(rounds)
        metric, accuracy = _accuracies(store, len(clients), complete)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read as a run: {error}") from None
    if not any(accuracy.values()):
        raise NotEvaluatedError(f"{path} has no evaluated round yet: continue it with 'fedpac resume {path}'")
    return RunData(
        path=path,
        config=config,
        title=title,
        reported=reported,
        note=str(environment.get("note", ""))[:LONGEST_NOTE],
        names=[row["name"] or f"client {i}" for i, row in enumerate(clients)],
        sizes=sizes,
        test_sizes=test_sizes,
        groups=groups,
        class_counts=counts,
        accuracy=accuracy,
        last_round=len(rounds),
        seconds=seconds,
        bytes_up=up,
        bytes_down=down,
        environment=environment,
        metric=metric,
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 1e12:  # NaN is neither
        raise ValueError(f"rounds.csv: {shown(text)} is not a number of seconds")
    return seconds


def _check_stated(config: dict[str, Any]) -> None:
    for key, kind in STATED.items():
        if key.startswith("data.") and "federation" in config:
            continue  # the data are the sites' own
        value: Any = config
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, kind):
            raise ValueError(f"config.toml lacks {key}")


def _title_and_reported(name: str, store: RunStore, environment: dict[str, Any]) -> tuple[str, Which]:
    """Of a method that is not fedpac's, what the run has recorded: reading a folder imports no code."""
    if method := list_methods().get(name):
        return method.title, method.reported
    recorded = environment.get("method") or (store.read_json("summary.json") if store.finished else {})
    return str(recorded.get("title", name)), "personal" if recorded.get("reported") == "personal" else "received"


def _all_present(store: RunStore, config: dict[str, Any]) -> bool:
    """Whether every client has a result in every evaluated round."""
    run = config["run"]
    sampled = run.get("evaluate_clients") is not None or run.get("evaluate_absentees") is False
    tolerant = run.get("min_replies") is not None  # a site that came late was never asked, and did not fail
    return not (sampled or tolerant or "federation" in config or (store.path / "failures.csv").exists())


def _accuracies(store: RunStore, clients: int, complete: int) -> tuple[str, dict[Which, dict[int, Floats]]]:
    """What models were judged by, 'accuracy' or 'r2', and split -> round -> that by client.

    Up to the round `complete`, clients may be absent. In later ones none may, but in the very last, which is left out
    then: a kill may have cut it off.
    """
    found: dict[Which, dict[int, dict[int, float]]] = {split: {} for split in SPLITS}
    rows, last = store.rows("metrics.csv"), 0
    metric = "r2" if rows and "r2" in rows[0] else "accuracy"
    for row in rows:
        which, t, client = row["split"], count(row["round"]), int(row["client"])
        if which not in SPLITS or not 0 <= client < clients:
            raise ValueError(f"metrics.csv, round {t}: there is no client {client} with the split '{which}'")
        of_round = found[which].setdefault(t, {})
        if client in of_round:
            raise ValueError(f"metrics.csv, round {t}: client {client} occurs twice ({which})")
        of_round[client], last = float(row[metric]), max(last, t)
        if not HEADLINES[metric].least <= of_round[client] <= 1:  # NaN is neither
            raise ValueError(
                f"metrics.csv, round {t}: {of_round[client]} is not an {metric} (client {client}, {which})"
            )
    accuracy: dict[Which, dict[int, Floats]] = {split: {} for split in SPLITS}
    for which, rounds in found.items():
        for t, of_round in rounds.items():
            if t <= complete or len(of_round) == clients:
                accuracy[which][t] = np.array([of_round.get(i, np.nan) for i in range(clients)])
            elif t < last:
                lacking = next(i for i in range(clients) if i not in of_round)
                raise ValueError(f"metrics.csv, round {t}: client {lacking} is missing ({which})")
    return metric, accuracy


def read_runs(paths: Iterable[Path], skipped: Callable[[RunError], None] | None = None) -> list[RunData]:
    """All runs; a folder that holds no run but has runs in it stands for them.

    `skipped` is told of runs in such a folder that have only just begun; without it, one is an error.
    """
    found: dict[Path, RunData] = {}
    for path in paths:
        inside = sorted(p.parent for p in path.glob("[!.]*/config.toml"))
        alone = (path / "config.toml").is_file() or not inside
        for folder in [path] if alone else inside:
            try:
                found[folder] = read_run(folder)
            except NotEvaluatedError as error:
                if alone or skipped is None:
                    raise
                skipped(error)
    return list(found.values())
