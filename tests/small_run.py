"""Runs on tiny data, and what of their folders must be equal."""

from pathlib import Path

from fedpac.config import make_config
from fedpac.config_values import changed
from fedpac.runs.execute import run

EXACT = ("config.toml", "clients.csv", "metrics.csv", "weights.csv")


def tiny(folder, **changes):
    """A run of two rounds; changes are keys of the config with __ for the dot."""
    values = {
        "method": "fedavg",
        "model": "logistic",
        "data": {"dataset": "digits", "clients": 4, "samples": 10, "test_samples": 10},
        "training": {"epochs": 1},
        "run": {"rounds": 2, "evaluate_every": 1, "engine": "serial"},
    }
    for key, value in changes.items():
        values = changed(values, key.replace("__", "."), value)
    run(make_config(values), folder)


def small(rounds=8, method="fedpac", **more):
    """Four clients with ten images each, and the smallest model there is: a round takes milliseconds."""
    sections = {
        "method": method,
        "model": "logistic",
        "data": {"dataset": "digits", "clients": 4, "samples": 10, "test_samples": 10},
        "training": {"epochs": 1},
        "run": {"rounds": rounds, "evaluate_every": 2, "checkpoint_every": 3, "workers": 2},
    }
    for key, value in more.items():
        section, _, name = key.partition("__")
        sections[section][name] = value
    return make_config(sections)


def exact(folder: Path) -> dict[str, bytes]:
    """Everything in the folder that must not depend on how the run went."""
    return {name: (folder / name).read_bytes() for name in EXACT}
