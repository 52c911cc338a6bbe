"""Folders of runs written by hand: of any size in no time, and with whatever a stranger may put into them."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedpac.runs.folder import CLIENTS, FAILURES, METRICS, ROUNDS, SCORES, WEIGHTS, csv_lines

CONFIG = """model = "paper"
[method]
name = "{method}"
[data]
dataset = "digits"
scenario = "groups"
clients = {clients}
[training]
lr = 0.01
[run]
rounds = {rounds}
seed = {seed}
"""


def forge(
    folder: Path,
    method: str = "fedpac",
    *,
    clients: int = 20,
    rounds: int = 10,
    wanted: int | None = None,
    seed: int = 0,
    classes: int = 10,
    test: int = 600,
    level: float = 0.9,
    names: list[str] | None = None,
    weights: bool = False,
    failures: Sequence[tuple[int, int, str, str]] = (),
    scores: Sequence[str] = (),
    reliability: bool = False,
    environment: dict[str, Any] | None = None,
    note: str = "",
    more: str = "",
) -> Path:
    """Accuracies rise to about `level`; every round is evaluated."""
    rng = np.random.default_rng(seed + 1000 * sum(map(ord, method)))
    folder.mkdir(parents=True)
    names = names or [f"client {i}" for i in range(clients)]
    config = CONFIG.format(method=method, clients=clients, rounds=wanted or rounds, seed=seed) + more
    (folder / "config.toml").write_text(config)
    held = [(i, names[i], i % 5, 300, test, *([30] * classes)) for i in range(clients)]
    tables: dict[str, list[Sequence[object]]] = {
        "clients.csv": [(*CLIENTS, *(f"class_{k}" for k in range(classes))), *held],
        "rounds.csv": [ROUNDS, *((t, clients, "1.0", "2.0", 1_000_000, 900_000) for t in range(1, rounds + 1))],
    }
    own = level + 0.03 * rng.standard_normal(clients)
    metrics: list[Sequence[object]] = [METRICS]
    for t in range(1, rounds + 1):
        for split in ("personal", "received"):
            right = np.clip(own * (1 - np.exp(-t / 3)) + 0.01 * rng.standard_normal(clients), 0, 1)
            metrics += [(t, i, split, round(float(right[i]) * test) / test, 0.3) for i in range(clients)]
    tables["metrics.csv"] = metrics
    tables["weights.csv"] = [WEIGHTS]
    if weights:
        for t in range(1, rounds + 1):
            alike = np.equal.outer(np.arange(clients) % 5, np.arange(clients) % 5) * rng.random((clients, clients))
            alike /= alike.sum(1, keepdims=True)
            tables["weights.csv"] += [(t, i, j, float(alike[i, j])) for i, j in zip(*np.nonzero(alike), strict=True)]
    if scores:
        asked = [(i, split, metric) for i in range(clients) for split in ("received", "personal") for metric in scores]
        tables["scores.csv"] = [
            SCORES, *((rounds, i, split, "test", metric, round(rng.random(), 4)) for i, split, metric in asked)
        ]  # fmt: skip
    if reliability:
        tables.setdefault("scores.csv", [SCORES])
        for i, split, at in product(range(clients), ("received", "personal"), (7, 11, 14)):
            values = {"samples": 10 + at, "confidence": (at + 0.5) / 15, "accuracy": (at - i % 5) / 15}
            tables["scores.csv"] += [
                (rounds, i, split, "test", f"reliability {at} {field}", value) for field, value in values.items()
            ]
    if failures:
        tables["failures.csv"] = [FAILURES, *failures]
    for name, rows in tables.items():
        (folder / name).write_text(csv_lines(rows))
    session = {"command": "fedpac run", "commit": "0123456789ab", "versions": {"fedpac": "0.1.0", "torch": "2"}}
    (folder / "environment.json").write_text(json.dumps(environment or {"note": note, "sessions": [session]}))
    return folder
