"""The config says what is used, and names a wrong key or value together with what is allowed."""

import math
import tomllib

import pytest

from fedpac.config import make_config
from fedpac.config_values import override, read_config
from fedpac.data.scenario import build, describe
from fedpac.data.scenarios import SCENARIOS
from fedpac.errors import ConfigError
from fedpac.methods import list_methods


@pytest.mark.parametrize("name", sorted(list_methods()))
def test_a_config_survives_its_own_file(name):
    config = make_config({"method": name, "data": {"dataset": "digits"}})
    again = make_config(tomllib.loads(config.to_toml()))
    assert again == config
    assert again.to_toml() == config.to_toml()


DEALT = [
    *({"dataset": "digits", "scenario": name} for name in SCENARIOS if name not in ("natural", "cinic-sep")),
    {"dataset": "digits", "scenario": "iid", "shift": "labels"},
    {"dataset": "digits", "scenario": "pathological", "shift": "rotation", "allocation": "clustered"},
    {"dataset": "digits", "groups": 3, "s": 0},
    {"dataset": "digits", "scenario": "dirichlet", "clients": 5, "samples": 30},
]


@pytest.mark.parametrize("data", DEALT, ids=lambda data: "-".join(map(str, data.values())))
def test_resolved_data_are_the_same_data(data):
    data = {"clients": 10, **data}
    given = make_config({"data": data}).data
    plain = type(given)(**data)
    assert plain != given, "nothing was written out"
    assert given.resolved() == given
    for part in ("train", "test"):
        assert describe(build(plain, 0), part).equal(describe(build(given, 0), part))
    one, other = build(plain, 0).clients[-1], build(given, 0).clients[-1]
    assert one.train.index.equal(other.train.index)
    assert one.train.rotate == other.train.rotate
    assert one.train.labels().equal(other.train.labels())


@pytest.mark.parametrize("dataset", ["digits", "fashion-mnist", "cifar10", "emnist", "cinic10"])
def test_the_file_states_what_the_paper_says(dataset):
    written = tomllib.loads(make_config({"data": {"dataset": dataset}}).to_toml())
    assert {"clients", "samples", "test_samples", "s", "dominant", "augment", "shift"} <= written["data"].keys()
    assert written["training"]["lr"] == (0.02 if dataset.startswith("c") else 0.01)
    assert written["training"]["batch"] == {"emnist": 100, "digits": 10}.get(dataset, 50)


def test_what_the_user_says_goes_before_the_paper():
    assert make_config({"data": {"dataset": "cifar10"}, "training": {"lr": 0.5}}).training.lr == 0.5


def test_what_the_scenario_says_about_participation():
    def share(scenario, **run):
        return make_config({"data": {"scenario": scenario}, "run": run}).run.participation

    assert (share("groups"), share("dirichlet"), share("scarce")) == (1.0, 0.3, 0.03)
    assert share("scarce", participation=1.0) == 1.0  # said, though it is what others take
    config = make_config({"data": {"scenario": "scarce"}})
    assert "participation = 0.03" in config.to_toml()
    assert make_config(tomllib.loads(config.to_toml())) == config


def test_own_data_are_trained_alike_whether_they_are_named_or_implied():
    implied = make_config({"data": {"path": "x"}})
    assert implied == make_config({"data": {"path": "x", "dataset": "own"}})
    assert implied.training.batch == 50


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("method.name=fedpax", "no method 'fedpax'. Did you mean 'fedpa"),
        ("method.lamda=1", "no setting 'lamda'. Did you mean 'lam'"),
        ("method.lam=-1", "method fedpac: lam = -1"),
        ("data.dataset=fashon-mnist", "Did you mean 'fashion-mnist'"),
        ("data.scenario=group", "Did you mean 'groups'"),
        ("data.client=3", "config: data.client: there is no key 'client'. Did you mean 'clients'"),
        ("trainig.lr=1", "config: trainig: there is no key 'trainig'. Did you mean 'training'"),
        ("training.lr=-0.1", "config: training.lr = -0.1: input should be greater than 0"),
        ("training.lr=nan", "config: training.lr"),
        ("training.lr=inf", "config: training.lr"),
        ("training.lr=fast", "config: training.lr = 'fast'"),
        ("training.batch=0", "config: training.batch = 0"),
        ("training.epochs=1.5", "config: training.epochs = 1.5"),
        ("run.rounds=0", "config: run.rounds = 0"),
        ("run.rounds=99999999999", "config: run.rounds"),
        ("run.participation=0", "config: run.participation = 0"),
        ("run.participation=1.01", "config: run.participation = 1.01"),
        ("run.seed=-1", "config: run.seed = -1"),
        ("run.workers=0", "config: run.workers = 0"),
        ("run.engine=gpu", "config: run.engine = 'gpu'"),
        ("data.clients=-3", "config: data.clients = -3"),
        ("data.clients=9999999999", "config: data.clients"),
        ("data.beta=0.5", "beta has no effect in scenario 'groups'"),
        ("model=resnet", "config: model = 'resnet'"),
        ("run=5", "config: run = 5"),
        ("data.clients.x=5", "config: data.clients"),
        ("lr", "not of the form section.key=value"),
        ("=3", "not of the form section.key=value"),
        pytest.param("run.seed=" + "9" * 5000, "config: run.seed = '99999", id="5,000 digits"),
        pytest.param("run.seed=0x" + "f" * 5000, "digits", id="5,000 hexadecimal digits"),
        pytest.param("data.s=" + "[" * 3000, "config: data.s = '[[[", id="3,000 brackets"),
        pytest.param("method.lam=" + "[" * 250 + "]" * 250, "nested too deeply", id="250 pairs of brackets"),
        pytest.param(".".join("a" * 3000) + "=1", "nested too deeply", id="3,000 sections"),
    ],
)
def test_a_wrong_value_is_named(assignment, message):
    with pytest.raises(ConfigError) as caught:
        make_config(override({}, assignment))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_infinite_setting_survives_the_file():
    config = make_config(override({"method": "pfedhn"}, "method.clip=inf"))
    assert make_config(tomllib.loads(config.to_toml())) == config
    assert config.make_method().clip == math.inf


def test_a_file_that_nobody_means(tmp_path):
    """The parser would take minutes."""
    (tmp_path / "c.toml").write_text("a." * 500_000 + "a = 1")
    with pytest.raises(ConfigError, match="more than 32,768 characters"):
        read_config(tmp_path / "c.toml")


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        make_config({"training": {"lr": -1, "batch": 0}, "run": {"round": 3}})
    assert len(str(caught.value).splitlines()) == 3


def test_override_keeps_the_rest_and_its_argument():
    values = {"method": "fedpac", "training": {"lr": 1.0, "batch": 5}}
    changed = override(override(values, "training.lr=0.5"), "method.lam=2")
    assert changed == {"method": {"name": "fedpac", "lam": 2}, "training": {"lr": 0.5, "batch": 5}}
    assert values == {"method": "fedpac", "training": {"lr": 1.0, "batch": 5}}


@pytest.mark.parametrize("content", [b"[run\nrounds = 3", b"run = ", b"\xff\xfe\x00"])
def test_a_file_that_is_no_toml(tmp_path, content):
    (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"c\.toml"):
        read_config(tmp_path / "c.toml")


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="there is no config file"):
        read_config(tmp_path / "c.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path)
