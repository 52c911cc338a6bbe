"""Numbers keep their type from the user's arrays to the network: tokens are whole, doubles are doubles."""

import numpy as np
import pytest
import torch
from torch import nn

import fedpac
from fedpac.errors import DataError

WORDS, LENGTH = 50, 6
SETTINGS = {"rounds": 3, "lr": 0.5, "epochs": 5, "batch": 10, "seed": 0, "engine": "serial"}


class Bag(nn.Module):
    """The mean of the words' vectors."""

    def __init__(self):
        super().__init__()
        self.vectors = nn.Embedding(WORDS, 8)

    def forward(self, x):
        return self.vectors(x).mean(1)


def made(body, inputs=8):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return fedpac.Classifier(body(), nn.Linear(inputs, 2))


def sentences(dtype, clients=3):
    """Class 0 uses the first half of the words, class 1 the second."""
    rng = np.random.default_rng(0)

    def some(n):
        y = np.arange(n) % 2
        return (rng.integers(WORDS // 2, size=(n, LENGTH)) + WORDS // 2 * y[:, None]).astype(dtype), y

    return [(*some(40), *some(20)) for _ in range(clients)]


@pytest.mark.parametrize("method", ["fedavg", "fedpac"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "int64"])
def test_tokens_reach_an_embedding(dtype, method):
    data = sentences(dtype)
    result = fedpac.fit(made(Bag), data, method, **SETTINGS)
    assert min(result.accuracy) > 0.9
    assert np.mean(result.models[1].predict(data[1][2]) == data[1][3]) == result.accuracy[1]
    with pytest.raises(DataError, match="trained on whole numbers"):
        result.models[1].predict(data[1][2] + 0.5)


def test_the_type_of_tokens_changes_nothing():
    probabilities = [
        fedpac.fit(made(Bag), sentences(dtype), "fedpac", **SETTINGS).models[0].predict_proba(sentences("int64")[0][2])
        for dtype in ("uint8", "int64")
    ]
    assert np.array_equal(*probabilities)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool"])
def test_whole_numbers_reach_a_network_that_wants_floats_as_floats(dtype):
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (rng.integers(2, size=(40, 6)) * y[:, None]).astype(dtype)
    whole, floats = (
        fedpac.fit(made(nn.Identity, 6), [(x, y, x, y)] * 2, "fedavg", **SETTINGS) for x in (x, x.astype(np.float32))
    )
    assert whole.accuracy == floats.accuracy
    expected = floats.models[0].predict_proba(x.astype(np.float32))
    for given in (x, x.astype(np.float64)):  # what fit took, and the same numbers in another type
        assert np.array_equal(whole.models[0].predict_proba(given), expected)


def test_doubles_stay_doubles_for_a_network_of_doubles():
    """The classes differ by less than single precision shows."""
    y = np.arange(40) % 2
    x = np.ones((40, 1)) + 1e-9 * y[:, None]

    class Magnified(nn.Module):
        def forward(self, x):
            return (x - 1) * 1e9

    data = [(x, y, x, y)] * 2
    double = fedpac.fit(made(Magnified, 1).double(), data, "fedavg", **SETTINGS | {"rounds": 20})
    assert double.accuracy == [1.0, 1.0]
    assert double.models[0].predict(x).tolist() == y.tolist()
    single = fedpac.fit(made(Magnified, 1), data, "fedavg", **SETTINGS | {"rounds": 20})
    assert single.accuracy == [0.5, 0.5]


def test_own_files_of_whole_numbers_run_on_the_command_line(fedpac, tmp_path):
    for dtype in ("uint8", "int64", "float64"):
        x = np.random.default_rng(0).integers(9, size=(60, 4)).astype(dtype)
        np.savez(tmp_path / f"{dtype}.npz", x=x, y=x[:, 0].astype(int) % 3)
        code, _, complaint = fedpac(
            "run", "--scenario", "iid", "--clients", 2, "--set", f"data.path={dtype}.npz", "--set", "model=logistic",
            "--rounds", 1, "--method", "fedavg", "--out", f"run-{dtype}",
        )  # fmt: skip
        assert code == 0, complaint
        np.savez(tmp_path / "new.npz", x=x)
        assert fedpac("predict", f"run-{dtype}", "new.npz")[0] == 0
    scores = {(tmp_path / f"run-{dtype}" / "metrics.csv").read_bytes() for dtype in ("uint8", "int64", "float64")}
    assert len(scores) == 1
