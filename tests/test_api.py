"""fedpac.fit and the models that it gives back."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import fedpac
from fedpac.config import make_config
from fedpac.errors import ConfigError, DataError, FedpacError, RunError
from fedpac.evaluation import Evaluation
from fedpac.methods import list_methods
from fedpac.methods.fedavg import FedAvg
from fedpac.runs.execute import run

CLASSES, INPUTS = 3, 5


def clients(n=3, samples=20, seed=0):
    generator = np.random.default_rng(seed)
    means = 3 * generator.normal(size=(CLASSES, INPUTS))

    def draw(count):
        y = np.arange(count) % CLASSES
        return (means[y] + generator.normal(size=(count, INPUTS))).astype(np.float32), y

    return [(*draw(samples), *draw(12)) for _ in range(n)]


def network(seed=0):
    torch.manual_seed(seed)
    return fedpac.Classifier(nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU()), nn.Linear(8, CLASSES))


def quick(**more):
    return {"rounds": 2, "lr": 0.05, "epochs": 1, "batch": 8, "engine": "serial", **more}


@pytest.mark.parametrize("method", sorted(list_methods()))
def test_every_method_gives_models_that_do_what_accuracy_says(method):
    data = clients()
    result = fedpac.fit(network(), data, method, **quick())
    assert len(result.models) == len(data)
    for i, model in enumerate(result.models):
        x, y = data[i][2:]
        proba = model.predict_proba(x)
        assert proba.shape == (12, CLASSES)
        assert proba.sum(axis=1) == pytest.approx(np.ones(12))
        assert np.mean(model.predict(x) == y) == pytest.approx(result.accuracy[i])


@pytest.mark.parametrize("method", ["fedavg", "fedpac", "fedper", "ditto"])
def test_received_models_score_what_the_last_round_reported(method):
    data = clients()
    result = fedpac.fit(network(), data, method, **quick())
    again = [np.mean(result.model(i, "received").predict(data[i][2]) == data[i][3]) for i in range(3)]
    assert again == pytest.approx(result.history[-1].accuracies("received"))


def test_it_learns_and_asking_changes_nothing():
    result = fedpac.fit(network(), clients(), rounds=6, lr=0.1, batch=8, workers=2)
    assert np.mean(result.accuracy) > 0.9
    assert [report.round for report in result.history] == list(range(1, 7))
    x = clients()[0][2]
    first = result.models[0].predict_proba(x)
    result.model(0, "personal")
    assert np.array_equal(result.models[0].predict_proba(x), first)
    assert np.array_equal(result.models[-3].predict_proba(x), first)
    assert len(result.models[:2]) == 2


def test_the_users_model_is_not_changed():
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fedpac.fit(model, clients(), **quick())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_numpy_and_torch_and_engines_agree():
    data = clients()
    tensors = [tuple(torch.as_tensor(array) for array in client) for client in data]
    one = fedpac.fit(network(), data, **quick())
    other = fedpac.fit(network(), tensors, **quick(engine="process", workers=2))
    x = data[1][2]
    assert np.array_equal(one.models[1].predict_proba(x), other.models[1].predict_proba(torch.as_tensor(x)))
    assert one.accuracy == other.accuracy


def test_images_in_bytes():
    generator = np.random.default_rng(0)
    y = np.arange(30) % 2
    x = (generator.integers(0, 100, (30, 8, 8)) + 150 * y[:, None, None]).astype(np.uint8)
    body = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten())
    result = fedpac.fit(fedpac.Classifier(body, nn.Linear(16, 2)), [(x, y, x, y)] * 2, **quick(rounds=4, epochs=5))
    assert result.accuracy == [1.0, 1.0]
    assert result.models[0].predict(x).tolist() == y.tolist()
    assert result.models[0].predict(x[:, None]).tolist() == y.tolist()
    with pytest.raises(DataError, match="expected \\(samples, 1, 8, 8\\)"):
        result.models[0].predict(x[:, :4])
    with pytest.raises(DataError, match="images are bytes"):  # not taken for floats that are normalised already
        result.models[0].predict(x[:, None].astype(np.int64))


def test_a_method_of_ones_own():
    class Halved(FedAvg):
        """Clients go half the way."""

        name = "halved"
        share: float = 0.5

        def fit(self, client, w, down):
            trained = super().fit(client, w, down)
            return {name: torch.lerp(w[name], trained[name], self.share) for name in w}

    data = clients()
    still = fedpac.fit(network(), data, Halved(share=0.0), **quick())
    moved = fedpac.fit(network(), data, Halved(), **quick())
    x = torch.as_tensor(data[0][2])
    assert still.models[0].predict_proba(x) == pytest.approx(network()(x).softmax(1).detach().numpy(), abs=1e-6)
    assert not np.allclose(still.models[0].predict_proba(x), moved.models[0].predict_proba(x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "fedpax"}, "Did you mean 'fedpa"),
        ({"settings": {"lamda": 1}}, "Did you mean 'lam'"),
        ({"method": FedAvg(), "settings": {"lam": 1}}, "with its own settings"),
        ({"rounds": 0}, "rounds = 0"),
        ({"lr": -1}, "lr = -1"),
        ({"participation": 0}, "participation = 0"),
        ({"evaluate_every": 0}, "evaluate_every = 0"),
        ({"engine": "gpu"}, "engine = 'gpu'"),
        ({"device": "gpu"}, "device 'gpu' is not available"),
        ({"rounds": 1.5}, "rounds = 1.5"),
        ({"workers": -2}, "workers = -2"),
        ({"rounds": "2"}, "rounds = '2'"),
        ({"rounds": True}, "rounds = True"),
        ({"participation": "0.5"}, "participation = '0.5'"),
        ({"lr": True}, "lr = True"),
        ({"settings": {"lam": True}}, "lam = True"),
        ({"settings": 3}, "settings = 3: expected the method's settings by name"),
        ({"method": FedAvg}, "expected a name, or an instance of a Method"),
        ({"device": "meta"}, "device 'meta' is not available"),
        ({"model": 3}, "the model is a int; expected a torch module"),
        ({"model": nn.Linear(INPUTS, CLASSES)}, "needs two sub-modules"),
        ({"model": nn.Sequential(nn.Linear(INPUTS, CLASSES))}, 'fedpac.split(model, head="0") makes them'),
        ({"model": fedpac.Classifier(nn.Linear(4, 4), nn.Linear(4, CLASSES))}, "does not accept samples of shape"),
        ({"model": fedpac.Classifier(nn.Linear(INPUTS, 4), nn.Linear(4, 2))}, "3 classes"),
    ],
)
def test_mistakes_are_named(change, message):
    arguments = {"model": network(), "clients": clients(), "method": "fedpac", **quick(), **change}
    with pytest.raises(ConfigError) as caught:
        fedpac.fit(**arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y, u, v: (x[:0], y[:0], u, v), "client 1, train: there are no samples"),
        (lambda x, y, u, v: (x, y, u[:0], v[:0]), "client 1, test: there are no samples"),
        (lambda x, y, u, v: (x, y[:-1], u, v), "client 1, train: x has shape"),
        (lambda x, y, u, v: (x * np.nan, y, u, v), "client 1, train: x has infinite or NaN values"),
        (lambda x, y, u, v: (x, y + 0.5, u, v), "expected one whole number per sample"),
        (lambda x, y, u, v: (x, y, u), "expected 4"),
    ],
)
def test_a_clients_bad_data_are_named(change, message):
    data = clients()
    data[1] = change(*data[1])
    with pytest.raises(DataError) as caught:
        fedpac.fit(network(), data, **quick())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": None}, "clients are a NoneType; expected a list"),
        ({"clients": {0: clients()[0]}}, "clients are a dict; expected a list"),
        ({"clients": [3]}, "client 0: a int given, expected 4"),
        ({"classes": "3"}, "classes = '3'; expected the number of classes"),
        ({"classes": -1}, "classes = -1; expected the number of classes"),
    ],
)
def test_clients_that_are_none_are_named(change, message):
    with pytest.raises(DataError) as caught:
        fedpac.fit(**{"model": network(), "clients": clients(), **quick(), **change})
    assert message in str(caught.value)


def test_samples_that_cannot_be_predicted():
    model = fedpac.fit(network(), clients(), **quick()).models[0]
    with pytest.raises(DataError, match="x is not a numeric array"):
        model.predict("abc")
    with pytest.raises(DataError, match="infinite or NaN"):
        model.predict(np.full((2, INPUTS), np.nan))


def test_paths_may_be_text(tmp_path):
    values = {"model": "logistic", "data": {"clients": 3}, "run": {"rounds": 1, "engine": "serial"}}
    summary = fedpac.run(make_config(values), str(tmp_path / "run"))
    assert fedpac.resume(str(tmp_path / "run")) == summary
    assert len(fedpac.load_run(str(tmp_path / "run"))) == 3


def test_there_is_no_such_client():
    result = fedpac.fit(network(), clients(), **quick())
    with pytest.raises(FedpacError, match="there is no client 3; there are 0 to 2"):
        result.model(3)
    with pytest.raises(FedpacError, match="there is no client a"):
        result.model("a")
    with pytest.raises(IndexError):
        result.models[3]
    with pytest.raises(ConfigError, match="expected 'received' or 'personal'"):
        result.model(0, "best")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    values = {
        "model": "logistic",
        "data": {"dataset": "digits", "clients": 3, "samples": 10, "test_samples": 10},
        "run": {"rounds": 2, "engine": "serial", "evaluate_every": 1},
    }
    path = tmp_path_factory.mktemp("run") / "it"
    run(make_config(values), path)
    return path


def test_a_run_folder_gives_the_models_it_scored(folder):
    result = fedpac.load_run(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert np.mean(result.accuracy) == pytest.approx(summary["received"]["final"]["mean"])


def test_an_exported_model_is_the_model(folder, tmp_path):
    model = fedpac.load_run(folder).models[1]
    path = model.save(tmp_path / "deep" / "model.safetensors")
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["fedpac"])
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert (about["client"], about["which"], about["method"]) == (1, "received", "fedpac")
    plain = fedpac.Classifier(nn.Flatten(), nn.Linear(784, 10))
    plain.load_state_dict(weights)
    x = model.data.test.tensors()[0]
    assert torch.equal(plain(x), model.module(x))


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(RunError, match="is not a run folder"):
        fedpac.load_run(tmp_path)


def test_a_script_without_a_main_guard(tmp_path):
    script = """
import numpy as np, torch, fedpac
from torch import nn
x, y = np.random.default_rng(0).normal(size=(30, 4)).astype("float32"), np.arange(30) % 2
x[:, 0] += 5 * y
torch.manual_seed(0)
model = fedpac.Classifier(nn.Linear(4, 4), nn.Linear(4, 2))
result = fedpac.fit(model, [(x, y, x, y)] * 3, rounds=5, lr=0.1, batch=10, workers=2)
print(len(result.models), min(result.accuracy))
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "3"
    assert float(done.stdout.split()[1]) > 0.9


def test_what_is_printed_shows_no_data():
    """A notebook prints the last value, and a log whatever is in it: neither may hold a client's samples."""
    result = fedpac.fit(network(), clients(), **quick())
    assert repr(result) == "Result(FedPAC, 3 clients, round 2)"
    assert repr(result.models[0]) == "ClientModel(client=0, which='received', method='fedpac')"
    for thing in (result.scenario, result.scenario.clients[0]):
        assert "tensor" not in repr(thing)
        assert len(repr(thing)) < 300


def test_a_sampler_and_an_evaluation_of_ones_own():
    class InTurns:
        def choose(self, task, round, available):
            return [client for client in available if client % 2 == round % 2]

    result = fedpac.fit(
        network(), clients(4), "fedavg", sampler=InTurns(),
        evaluation=Evaluation(every=2, personal_every=4, absentees=False, clients=3), **quick(rounds=4),
    )  # fmt: skip
    assert [report.chosen for report in result.history] == [[1, 3], [0, 2], [1, 3], [0, 2]]
    assert [len(report.accuracies("received")) for report in result.history] == [0, 3, 0, 3]
    scored = [[s.client for s in report.scores if s.which == "personal"] for report in result.history]
    assert scored[:3] == [[], [], []]
    assert scored[3]
    assert set(scored[3]) <= {0, 2}
