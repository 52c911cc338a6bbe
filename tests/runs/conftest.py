from pathlib import Path

import pytest
from small_run import small
from small_table import experiment

from fedpac.config import make_config
from fedpac.runs.reproduce import cells, fill
from fedpac.runs.run import run


@pytest.fixture(scope="package")
def filled(tmp_path_factory):
    """(experiment, folder of its runs), everything run in one go."""
    folder = tmp_path_factory.mktemp("filled")
    small = experiment(folder)
    done = list(fill(cells(small, folder / "results")))
    assert len(done) == 6  # three runs in each of two settings: the by-product has none of its own
    return small, folder / "results"


@pytest.fixture(scope="package")
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


@pytest.fixture(scope="package")
def reference(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    run(small(), folder)
    return folder
