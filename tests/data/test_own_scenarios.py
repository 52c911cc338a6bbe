"""Scenarios of the user's own data: as they are divided already, and dealt out anew."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dealing import DEALT, same, small

from fedpac.data import DataConfig, build, describe
from fedpac.errors import ConfigError, DataError

# --- natural splits -----------------------------------------------------------------------------------------------


@pytest.fixture
def writers(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    writer = np.repeat([0, 1, 2, 3], [30, 20, 3, 12])
    x = rng.integers(256, size=(65, 28, 28), dtype=np.uint8)
    order = rng.permutation(65)
    path = tmp_path / "writers.npz"
    np.savez(path, x=x, y=np.arange(65, dtype=np.uint8) % 7, writer=writer[order], writer_id=["ann", "bob", "cy", "di"])
    return path


def test_natural_split_by_writer(writers):
    config = DataConfig(scenario="natural", path=writers)
    assert config.dataset == "own"
    scenario = build(config, 0)
    assert [c.name for c in scenario.clients] == ["ann", "bob", "di"]  # cy has too little
    assert [(len(c.train), len(c.test)) for c in scenario.clients] == [(24, 6), (16, 4), (10, 2)]
    index = torch.cat([p.index for c in scenario.clients for p in (c.train, c.test)])
    assert len(index) == len(index.unique())  # nothing twice, so no test sample is in a training set
    assert scenario.classes == 7
    x, _ = scenario.clients[0].train.tensors()
    assert x.min() >= -1
    assert x.max() <= 1
    raw = np.load(writers)
    ann = {image.tobytes() for image in raw["x"][raw["writer"] == 0]}
    got = scenario.clients[0].train
    assert {got.pool.x[i].numpy().tobytes() for i in got.index} <= ann

    again, other = build(config, 0), build(config, 1)
    assert torch.equal(x, again.clients[0].train.tensors()[0])
    assert not torch.equal(x, other.clients[0].train.tensors()[0])
    assert len(build(config.model_copy(update={"min_samples": 25}), 0).clients) == 1


def test_natural_clients_can_be_shifted(writers):
    scenario = build(DataConfig(scenario="natural", path=writers, shift="labels", groups=2), 0)
    assert [c.group for c in scenario.clients] == [0, 1, 0]
    assert scenario.clients[0].train.relabel is not None


def test_nobody_has_enough(writers):
    with pytest.raises(DataError, match="no client has 100 samples"):
        build(DataConfig(scenario="natural", path=writers, min_samples=100), 0)


def test_pictures_are_needed_to_turn(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((20, 5)), y=np.zeros(20, int))
    with pytest.raises(ConfigError, match=r"need images; these samples have shape \(5,\)"):
        build(DataConfig(scenario="natural", path=tmp_path, shift="rotation"), 0)


# --- dealt out ----------------------------------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """300 training and 100 test images of 6 classes; a test image is bright, a training image is dark."""
    rng = np.random.default_rng(0)
    held: dict[str, Any] = {}
    for part, n, low in (("train", 300, 0), ("test", 100, 128)):
        held[f"x_{part}"] = rng.integers(low, low + 128, size=(n, 4, 5), dtype=np.uint8)
        held[f"y_{part}"] = np.arange(n) % 6
    np.savez(tmp_path / "mine.npz", **held)
    return tmp_path / "mine.npz"


@pytest.mark.parametrize("name", DEALT)
def test_every_scenario_deals_own_data_out(name, mine):
    config = small(name, path=mine)
    assert config.dataset == "own"
    assert config.resolved().clients == 10
    scenario = build(config, 1)
    assert same(scenario, build(config, 1))
    assert not same(scenario, build(config, 2))
    assert same(scenario, build(config.resolved(), 1))
    assert (scenario.name, scenario.classes, scenario.shape) == (f"own {name}", 6, (1, 4, 5))
    assert len(scenario.clients) == 10
    one = scenario.clients[0]
    assert one.train.pool.x.max() < 128 <= one.test.pool.x.min()
    assert not one.augment
    sizes, test_sizes = describe(scenario).sum(1), describe(scenario, "test").sum(1)
    assert (test_sizes == 10).all()  # an even share
    if name == "dirichlet":
        assert sizes.sum() == 300  # all of it
    elif name == "imbalanced":
        assert set(sizes.tolist()) <= {15, 30, 60}
    else:
        assert (sizes == (50 if name == "scarce" else 30)).all()
    groups = [None] if name in ("iid", "dirichlet") else range(5)
    assert {c.group for c in scenario.clients} == set(groups)


def test_own_data_take_what_the_config_says(mine):
    keys = {"path": mine, "clients": 4, "samples": 12, "test_samples": 6, "s": 0, "dominant": [[5], [0, 1]]}
    scenario = build(DataConfig(**keys), 0)
    assert describe(scenario).tolist() == 2 * [[0, 0, 0, 0, 0, 12], [6, 6, 0, 0, 0, 0]]
    assert describe(scenario, "test").tolist() == 2 * [[0, 0, 0, 0, 0, 6], [3, 3, 0, 0, 0, 0]]
    assert len(build(DataConfig(path=mine), 0).clients) == 20  # the scenario's own number
    assert describe(build(DataConfig(path=mine, clients=400), 0)).sum(1).tolist() == [1] * 400  # never nothing


def test_few_classes_make_few_groups(tmp_path):
    np.savez(tmp_path / "two.npz", x=np.zeros((40, 3)), y=np.arange(40) % 2)
    scenario = build(DataConfig(path=tmp_path / "two.npz", scenario="concept-shift", clients=4), 0)
    assert [c.group for c in scenario.clients] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"dominant": [[0, 6]]}, "dominant has [0, 6]; each set is one or more different classes of 0 to 5"),
        ({"scenario": "pathological", "classes_per_group": [8]}, "classes_per_group has 8; allowed are 1 to 6, the"),
        ({"scenario": "feature-skew", "angles": [1.0, 2.0]}, "angles has 2 values, but there are 5 groups"),
    ],
)
def test_what_does_not_fit_own_data_is_told_when_they_are_read(mine, keys, words):
    config = DataConfig(path=mine, **keys).resolved()
    with pytest.raises(ConfigError) as caught:
        build(config, 0)
    assert words in str(caught.value)


def test_own_data_that_are_no_pictures(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((40, 3)), y=np.arange(40) % 2)
    assert build(DataConfig(path=tmp_path / "a.npz", clients=2), 0).shape == (3,)
    with pytest.raises(ConfigError, match="need images"):
        build(DataConfig(path=tmp_path / "a.npz", scenario="feature-skew", clients=2), 0)


def test_own_classes_without_test_samples(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((41, 3)), y=np.append(np.arange(40) % 2, 2))  # one sample of class 2
    with pytest.raises(DataError, match="test samples of class 2, but the data hold none"):
        build(DataConfig(path=tmp_path / "a.npz", clients=2, samples=30, test_samples=30), 0)
