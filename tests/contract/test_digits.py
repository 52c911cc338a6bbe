"""Every method for five rounds on real images: the paper's network on digits, through every engine, to the last bit."""

import os
from functools import cache

import pytest
import torch

from fedpac.config import make_config
from fedpac.data.scenario import build
from fedpac.engines import ENGINES, make_engine
from fedpac.federation import Federation
from fedpac.methods import PAPER, list_methods, make_method
from fedpac.runs.execute import make_task
from fedpac.sampling import Uniform
from helpers import Finished

ROUNDS = 5
pytestmark = pytest.mark.usefixtures("all_cores")
WAYS = [("process", 1), ("process", 2), ("auto", 2)]


@pytest.fixture(scope="module")
def all_cores():
    """As in a user's program: torch may use every core, and has just done so."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(2, os.cpu_count() or 1))
    torch.rand(1 << 20).exp().sum()
    torch.rand(512, 512) @ torch.rand(512, 512)
    yield
    torch.set_num_threads(before)


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
        federation = Federation(task, method, running, sampler=Uniform(0.5))
        return Finished(task, federation, list(federation.rounds()))


def test_all_of_the_papers_methods_are_here():
    assert len(PAPER) == 22
    assert set(list_methods()) >= PAPER


def test_no_engine_is_left_out():
    assert {"serial", "ray"} | {engine for engine, _ in WAYS} == set(ENGINES)


@pytest.mark.parametrize("name", list_methods())
def test_five_rounds_on_digits_are_the_same_in_every_engine(name):
    oracle = run(name, "serial")
    assert [report.round for report in oracle.reports] == list(range(1, ROUNDS + 1))
    assert all(len(report.scores) == 8 for report in oracle.reports)  # two accuracies of all four clients
    for engine, workers in WAYS:
        found = run(name, engine, workers)
        assert found.scores() == oracle.scores(), f"{engine}, {workers} workers"
        assert found.bytes() == oracle.bytes(), f"{engine}, {workers} workers"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("name", list_methods())
def test_five_rounds_on_digits_are_the_same_on_a_cluster(name):
    found, oracle = run(name, "ray"), run(name, "serial")
    assert found.scores() == oracle.scores()
    assert found.bytes() == oracle.bytes()
