"""A data set is one entry and a scenario one class: nothing else has to be told about either."""

import numpy as np
import pytest

from fedpac.config import make_config
from fedpac.data import DataConfig, build, describe
from fedpac.data.published import PUBLISHED, Published
from fedpac.data.scenarios import SCENARIOS, Rule, known
from fedpac.report.catalogue import catalogue


@pytest.fixture
def first_come():
    before = dict(SCENARIOS)

    class FirstCome(Rule):
        """Client i has class i and no other."""

        name = "first-come"
        keys = Rule.keys | {"beta"}
        clients = 3
        participation = 0.5

        def filled(self, config, usual):
            return super().filled(config, usual) | {"beta": config.beta or 7.0}

        def shares(self, config, available, stream):
            return np.eye(known(config.clients), len(available))

    yield
    SCENARIOS.clear()
    SCENARIOS.update(before)


def test_a_scenario_is_one_class(first_come, fedpac):
    config = make_config({"data": {"scenario": "first-come", "samples": 4}})
    assert (config.data.clients, config.data.beta, config.run.participation) == (3, 7.0, 0.5)
    counts = describe(build(config.data, seed=0))
    assert counts.tolist() == (4 * np.eye(3, 10, dtype=int)).tolist()
    with pytest.raises(ValueError, match="s has no effect in scenario 'first-come'"):
        DataConfig(scenario="first-come", s=20)
    code, printed, _ = fedpac("data", "digits", "--scenario", "first-come")
    assert code == 0
    assert "digits first-come: 3 clients" in printed


def test_a_data_set_is_one_entry(monkeypatch, fedpac):
    x = np.zeros((40, 1, 9, 9), np.uint8)
    y = np.arange(40, dtype=np.uint8) % 4
    stripes = Published(
        wanted=(), downloads=(), decode=lambda files: {"x_train": x, "y_train": y, "x_test": x, "y_test": y},
        images=(40, 40), shape=(1, 9, 9), classes=4, mean=(0.5,), std=(0.5,), samples=8, test_samples=4,
        training={"batch": 7}, licence="CC0", page="https://example.org/stripes",
    )  # fmt: skip
    monkeypatch.setitem(PUBLISHED, "stripes", stripes)
    config = make_config({"data": {"dataset": "stripes"}, "model": "logistic"})
    assert (config.data.samples, config.training.batch) == (8, 7)
    assert build(config.data, seed=0).shape == (1, 9, 9)
    assert catalogue("stripes")[0]["licence"] == "CC0"
    code, _, complaint = fedpac("run", "--dataset", "stripes", "--set", "model=logistic", "--rounds", 1, "--out", "r")
    assert code == 0, complaint
