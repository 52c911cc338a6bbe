"""Puts this folder on the import path, so that tests can say `from helpers import ...`."""

import os
from pathlib import Path

os.environ["COLUMNS"] = "160"  # before the command line looks: tables are not broken where a test reads them

import pytest
import torch

from fedpac import cli
from fedpac.config import make_config
from fedpac.runs.execute import run
from fedpac.tables.cells import fill
from small_run import small
from small_table import cells_of, experiment

torch.set_num_threads(1)  # sums in one order, and no fight with the other test workers for cores


def pytest_collection_modifyitems(items):
    if not os.environ.get("FEDPAC_RAY_CLUSTER"):
        elsewhere = pytest.mark.skip(reason="tests/cluster/test_ray.py runs it, on a cluster in a network namespace")
        for item in items:
            if item.get_closest_marker("ray"):
                item.add_marker(elsewhere)


@pytest.fixture
def fedpac(monkeypatch, tmp_path, capfd):
    """Runs a command in an empty folder; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPAC_DATA", str(tmp_path / "data"))

    def command(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit:
            cli.main([str(a) for a in arguments])
        printed = capfd.readouterr()
        return int(exit.value.code or 0), printed.out, printed.err

    return command


@pytest.fixture(scope="session")
def filled(tmp_path_factory):
    """(experiment, folder of its runs), everything run in one go."""
    folder = tmp_path_factory.mktemp("filled")
    small = experiment(folder)
    done = list(fill(cells_of(small, folder / "results")))
    assert len(done) == 6  # three runs in each of two settings: the by-product has none of its own
    return small, folder / "results"


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """FedPAC with two seeds and FedAvg, six clients in the digits' five groups."""
    root = tmp_path_factory.mktemp("runs")
    for method, seed in (("fedpac", 0), ("fedpac", 1), ("fedavg", 0)):
        config = make_config(
            {
                "method": method,
                "model": "logistic",
                "data": {"dataset": "digits", "clients": 6, "samples": 10, "test_samples": 10},
                "training": {"epochs": 1},
                "run": {"rounds": 3, "seed": seed, "evaluate_every": 1, "engine": "serial"},
            }
        )
        run(config, root / f"{method}{seed}")
    return root


@pytest.fixture(scope="session")
def reference(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    run(small(), folder)
    return folder
