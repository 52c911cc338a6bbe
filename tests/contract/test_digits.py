"""Every method for five rounds on real images: the paper's network on digits, through every engine, to the last bit."""

from functools import cache

import pytest

from fedpac.config import make_config
from fedpac.data.scenario import build
from fedpac.engines import ENGINES, make_engine
from fedpac.federation import Federation
from fedpac.methods import make_method, methods
from fedpac.runs.run import make_task
from helpers import Finished

ROUNDS = 5
WAYS = [("process", 1), ("process", 2), ("auto", 2)]


@cache
def setting():
    """Four clients with twelve images each; two of them in a round, all in the last."""
    config = make_config(
        {
            "data": {"dataset": "digits", "clients": 4, "samples": 12, "test_samples": 10},
            "training": {"epochs": 1, "batch": 8, "lr": 0.05},
            "run": {"rounds": ROUNDS},
        }
    )
    return config, build(config.data, config.run.seed)


def run(name: str, engine: str, workers: int | None = None) -> Finished:
    config, scenario = setting()
    task, method = make_task(config, scenario), make_method(name)
    with make_engine(engine, task, method, scenario.clients, workers) as running:
        federation = Federation(task, method, running, participation=0.5)
        return Finished(task, federation, list(federation.rounds()))


def test_all_of_the_papers_methods_are_here():
    assert len(methods()) == 22


def test_no_engine_is_left_out():
    assert {"serial"} | {engine for engine, _ in WAYS} == set(ENGINES)


@pytest.mark.parametrize("name", methods())
def test_five_rounds_on_digits_are_the_same_in_every_engine(name):
    oracle = run(name, "serial")
    assert [report.round for report in oracle.reports] == list(range(1, ROUNDS + 1))
    assert all(len(report.scores) == 8 for report in oracle.reports)  # two accuracies of all four clients
    for engine, workers in WAYS:
        found = run(name, engine, workers)
        assert found.scores() == oracle.scores(), f"{engine}, {workers} workers"
        assert found.bytes() == oracle.bytes(), f"{engine}, {workers} workers"
