"""The networks by name, those of the user's own, and what a usual module becomes."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

import fedpac
from fedpac import native
from fedpac.errors import ConfigError, FedpacError
from fedpac.inspect.network import facts
from fedpac.models import Classifier, conv_block
from fedpac.networks import NETWORKS, build_model, network_for
from fedpac.recipe import Recipe
from fedpac.task import Task


def task_of(model, sample, classes=3):
    return Task(model, classes, Recipe(), 0, 2, 1, sample=sample)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("classes", [2, 7])
def test_every_network_is_a_body_and_a_head(name, classes):
    shape = NETWORKS[name].example
    tokens = name == "transformer"
    sample = torch.full(shape, 9) if tokens else torch.zeros(shape)
    model = build_model(name, shape, classes, 0, 10 if tokens else None)
    assert facts(model, sample, classes).features > 0  # the checks of a user's own module hold for it


@pytest.mark.parametrize("size", [(1, 8, 8), (3, 17, 40), (1, 28, 28), (3, 96, 64), (3, 130, 130)])
@pytest.mark.parametrize("name", ["cnn", "resnet8-gn", "resnet18-gn"])
def test_images_of_any_size(name, size):
    model = build_model(name, size, 4, 0)
    assert model(torch.zeros(2, *size)).shape == (2, 4)


def test_no_network_keeps_running_statistics():
    for name in ("resnet8-gn", "resnet18-gn", "cnn"):
        assert not list(build_model(name, (3, 32, 32), 4, 0).buffers())


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cnn", (30,), r"takes images of shape \(channels, height, width\)"),
        ("resnet8-gn", (3, 4, 4), "8 pixels a side or more"),
        ("transformer", (30,), "these samples are floats of shape"),
        ("paper", (3, 64, 64), "model=cnn"),
        ("resnet", (3, 32, 32), "there is no network 'resnet'"),
    ],
)
def test_samples_that_a_network_does_not_take(name, shape, message):
    with pytest.raises(ConfigError, match=message):
        build_model(name, shape, 4, 0)


@pytest.mark.skipif(not native.available(), reason="there are no kernels here")
def test_fused_kernels_engage_wherever_their_blocks_occur():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(*conv_block(1, 4, 3, 1))
            self.outer = nn.Sequential(nn.Sequential(*conv_block(4, 4, 3, 1)), nn.Flatten())

        def forward(self, x):
            return self.outer(self.inner(x) + 1)

    found = facts(Classifier(Nested(), nn.Linear(4 * 4 * 4, 3)), torch.zeros(1, 16, 16), 3)
    assert (found.fused, found.written_out) == (2, False)
    assert facts(build_model("cnn", (1, 28, 28), 3, 0), torch.zeros(1, 28, 28), 3).written_out


class Shortcut(nn.Module):
    """Calls the layers of its sequence one by one, and adds what came in before the activation."""

    def __init__(self, where):
        super().__init__()
        self.layers = nn.Sequential(*conv_block(1, 1, 3, 1))
        self.where = where

    def forward(self, x):
        convolved = self.layers[0](x)
        if self.where == "after the convolution":
            return self.layers[2](self.layers[1](convolved + x)).flatten(1)
        pooled = self.layers[1](convolved)
        return self.layers[2](pooled + nn.functional.avg_pool2d(x, 2)).flatten(1)


@pytest.mark.parametrize("where", ["after the convolution", "after the pool"])
def test_fusing_is_not_confused_by_residual_blocks(where):
    torch.manual_seed(0)
    model = Classifier(Shortcut(where), nn.Linear(36, 3))
    x = torch.randn(4, 1, 12, 12)
    expected = model(x)
    task = task_of(model, torch.zeros(1, 12, 12))
    torch.testing.assert_close(task.model(x), expected)
    result = fedpac.fit(
        model, [(x.numpy(), np.arange(4) % 3, x.numpy(), np.arange(4) % 3)] * 2, "fedavg", rounds=1, engine="serial",
        lr=1e-9,
    )  # fmt: skip
    torch.testing.assert_close(result.model(0).module(x), expected, rtol=1e-4, atol=1e-5)


class Usual(nn.Module):
    def __init__(self, after=None):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
        self.classifier = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
        self.after = after

    def forward(self, x):
        y = self.classifier(self.features(x))
        return y if self.after is None else self.after(y)


@pytest.mark.parametrize(("head", "features"), [("classifier", 5), ("classifier.2", 4)])
def test_a_usual_module_is_parted(head, features):
    module = Usual()
    names = list(module.state_dict())
    model = fedpac.split(module, head=head)
    x = torch.randn(7, 6)
    torch.testing.assert_close(model.head(model.body(x)), module(x))
    task = task_of(model, torch.zeros(6))
    assert task.features == features
    assert type(task.model) is Classifier
    assert list(module.state_dict()) == names  # the module is as it was
    weights = {name for name, _ in task.model.named_parameters()}
    assert len(weights) == len(names)
    assert all(name.startswith(("body.", "head.")) for name in weights)


@pytest.mark.parametrize("head", ["features", "classifier.0"])
def test_a_layer_that_is_not_the_last_is_refused(head):
    with pytest.raises(ConfigError, match=f"Usual is not head.* with the head '{head}'|does not accept the features"):
        task_of(fedpac.split(Usual(), head=head), torch.zeros(6))


def test_something_after_the_head_is_refused():
    with pytest.raises(ConfigError, match="something comes after that layer"):
        task_of(fedpac.split(Usual(nn.Softmax(1)), head="classifier"), torch.zeros(6))


@pytest.mark.parametrize("head", ["fc", "classifier.9", "classifier.0.weight", ""])
def test_a_layer_that_is_not_there_is_named(head):
    with pytest.raises(ConfigError, match=f"there is no layer '{head}'"):
        fedpac.split(Usual(), head=head)


def images():
    """Stripes across, stripes down, or none."""
    generator = np.random.default_rng(0)
    across, down = np.indices((16, 16)) % 4 < 2
    patterns = 120 * np.stack([across, down, np.zeros((16, 16), dtype=bool)])
    clients = []
    for i in range(3):
        y = generator.integers(0, 3, 60 + i)
        x = (patterns[y][..., None] + generator.integers(0, 100, (60 + i, 16, 16, 3))).astype("uint8")
        clients.append((x[:40], y[:40], x[40:], y[40:]))
    return clients


def tokens():
    """Which token comes most often in a sequence of twelve."""
    generator = np.random.default_rng(0)
    clients = []
    for i in range(3):
        y = generator.integers(0, 4, 60 + i)
        x = generator.integers(0, 10, (60 + i, 12))
        x[:, ::2] = y[:, None]
        clients.append((x[:40], y[:40], x[40:], y[40:]))
    return clients


@pytest.mark.parametrize(("name", "clients"), [("resnet8-gn", images), ("transformer", tokens)])
def test_engines_agree_and_the_network_learns(name, clients):
    data = clients()
    scenario = fedpac.from_arrays(data)
    model = network_for(name, scenario.sample, scenario.classes, 0)
    runs = [
        fedpac.fit(
            model, data, "fedpac", rounds=3, batch=8, epochs=3, seed=1, engine=engine, workers=2, lr=0.003,
            training={"optimizer": "adamw"},
        )
        for engine in ("serial", "process")
    ]  # fmt: skip
    assert [report.scores for report in runs[0].history] == [report.scores for report in runs[1].history]
    assert np.mean(runs[0].accuracy) > 0.6


@pytest.mark.parametrize(("name", "clients"), [("cnn", images), ("transformer", tokens)])
def test_a_network_by_its_name_is_the_one_of_the_command_line(name, clients, tmp_path):
    scenario = fedpac.from_arrays(clients())
    quick = {"rounds": 1, "epochs": 1, "seed": 3, "engine": "serial"}
    named = fedpac.fit(name, scenario, **quick)
    given = fedpac.fit(network_for(name, scenario.sample, scenario.classes, 3), scenario, **quick)
    assert named.history[0].scores == given.history[0].scores
    bundle = fedpac.load_model(named.models[0].save(tmp_path / "model", onnx=False))  # its name is enough to open it
    x = clients()[0][2]
    np.testing.assert_allclose(bundle.predict_proba(x), named.models[0].predict_proba(x), atol=1e-6)
    with pytest.raises(ConfigError, match=r"there is no network 'transfomer'. Did you mean 'transformer'"):
        fedpac.fit("transfomer", scenario, rounds=1)


@pytest.fixture
def own_network(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(
        "from torch import nn\nimport fedpac\n"
        "def make(shape, classes):\n"
        "    size = shape[0] * shape[1] * shape[2]\n"
        "    body = nn.Sequential(nn.Flatten(), nn.Linear(size, 9), nn.ReLU())\n"
        "    return fedpac.Classifier(body, nn.Linear(9, classes))\n"
        "def broken(shape, classes):\n    raise ValueError('not today')\n"
        "class Usual(nn.Module):\n"
        "    def __init__(self, channels, features, classes):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Sequential(nn.Conv2d(channels, 4, 5), nn.LeakyReLU(), nn.MaxPool2d(2), nn.Flatten())\n"
        "        self.fc = nn.Linear(features, classes)\n"
        "    def forward(self, x):\n        return self.fc(self.conv(x))\n"
        "def usual(shape, classes):\n"
        "    side = (shape[1] - 4) // 2\n"
        "    return fedpac.split(Usual(shape[0], 4 * side * side, classes), head='fc')\n"
        "nothing = 3\n"
        "def odd(shape, classes):\n    return 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("my_networks", None)


def test_a_network_of_ones_own_on_the_command_line(fedpac, own_network):
    how = ("--method", "fedavg", "--dataset", "digits", "--clients", 3, "--rounds", 2, "--engine", "serial")
    code, out, err = fedpac("run", *how, "--model", "my_networks:make", "--out", "run", "--no-figures")
    assert code == 0, err
    assert 'model = "my_networks:make"' in (own_network / "run" / "config.toml").read_text()
    np.savez(own_network / "x.npz", x=np.zeros((2, 28, 28), dtype="uint8"))
    code, _, err = fedpac("predict", "run", "x.npz")
    assert code == 1
    assert "--model my_networks:make" in err
    for more in (("--trust",), ("--model", "my_networks:make")):
        code, out, err = fedpac("predict", "run", "x.npz", *more)
        assert code == 0, err
    code, out, err = fedpac("models", "my_networks:make", "--shape", "1,8,8")
    assert code == 0, err
    assert "gradients written out" in out


@pytest.mark.skipif(not native.available(), reason="there are no kernels here")
def test_kernels_engage_in_a_network_of_ones_own(fedpac, own_network, monkeypatch):
    """Said before the run; and training with them is what it is without, up to rounding."""
    assert "1 fused block; gradients by autograd" in fedpac("models", "my_networks:usual", "--shape", "1,28,28")[1]
    how = ("--method", "fedavg", "--dataset", "digits", "--clients", 3, "--rounds", 2, "--engine", "serial")
    for folder in ("fused", "plain"):
        assert fedpac("run", *how, "--model", "my_networks:usual", "--no-figures", "--out", folder)[0] == 0
        monkeypatch.setattr("fedpac.task.accelerated", lambda model, sample: model)
    losses = [
        np.genfromtxt(f"{folder}/metrics.csv", delimiter=",", names=True)["loss"] for folder in ("fused", "plain")
    ]
    assert not np.array_equal(*losses)
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_networks:broken", "ValueError: not today"),
        ("my_networks:nothing", "expected a function"),
        ("my_networks:odd", "gave a int"),
        ("my_networks:missing", "AttributeError"),
        ("no_such_module:make", "ModuleNotFoundError"),
    ],
)
def test_networks_that_cannot_be_made(own_network, name, message):
    with pytest.raises(ConfigError, match=message):
        build_model(name, (1, 8, 8), 3, 0)


def test_a_strangers_network_is_not_imported(own_network, tmp_path):
    """Neither by resuming nor by reading: the module would leave a file."""
    (tmp_path / "strange.py").write_text(f"open({str(tmp_path / 'was-here')!r}, 'w').close()\n")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text('model = "strange:make"\n[method]\nname = "fedavg"\n')
    for look in (fedpac.load_run, fedpac.resume):
        with pytest.raises(FedpacError, match="not part of fedpac"):
            look(folder)
    assert not (tmp_path / "was-here").exists()


def test_the_list_says_whether_kernels_engage(fedpac):
    code, out, _ = fedpac("models")
    assert code == 0
    assert all(name in out for name in NETWORKS)
    assert ("2 fused blocks" in out) == native.available()
    code, _, err = fedpac("models", "cnn", "--shape", "three")
    assert code == 1
    assert "expected sizes such as 3,32,32" in err
