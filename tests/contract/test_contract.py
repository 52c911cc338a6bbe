"""What every method owes to every engine. A new method is tested here by being in the folder of methods."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
from sites import HospitalEngine, Hospitals, Listening

from fedpac.errors import ConfigError
from fedpac.message import Message
from fedpac.methods import Method, find_method, list_methods, make_method
from fedpac.testing import METHOD_CHECKS, Trial
from fedpac.testing.engines import Recording
from fedpac.testing.exchange import parts_with_samples
from fedpac.testing.tiny import uneven_data
from fedpac.testing.trial import ROUNDS
from fedpac.testing.verdicts import difference
from fedpac.training import evaluate
from helpers import Finished, run_federation, tiny_images, visit
from odd_models import ODD, drawn, token_data

FAMILIES = {
    "no collaboration", "one global model", "decoupling", "multi-task", "mixture", "clustering", "prototypes",
    "hyper-network", "collaboration",
}  # fmt: skip
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "fed-rod": [{"variant": "hyper"}],
    "lg-fedavg": [{"warm_start_rounds": 1}],
    "knn-per": [{"capacity": 0.5, "lam": 0.3}],
    "fedpac": [{"covariance": "local"}],
    "pfedhn": [{"steps": "mean", "lr": 0.1}],
    "per-fedavg": [{"first_order": False}],
    "fedccfa": [{"begin": 2}],
    "fedpac-plus": [{"control": False}],
}
CASES = [(name, settings) for name in list_methods() for settings in [{}, *VARIANTS.get(name, [])]]
every_method = pytest.mark.parametrize(
    ("name", "settings"), CASES, ids=["-".join([name, *map(str, settings.values())]) for name, settings in CASES]
)


_trials: dict[str, Trial] = {}


@pytest.fixture
def trial(name: str, settings: dict[str, Any]) -> Trial:
    """The method under examination; the plain run that others must equal is made once for each."""
    return _trials.setdefault(f"{name} {settings}", Trial(find_method(name), settings))


@pytest.fixture
def method(trial: Trial) -> Method:
    return trial.method()


SUMS = {
    **dict.fromkeys(
        ["apfl", "ditto", "fed-rod", "fedala", "fedas", "fedavg", "fedavg-ft", "fedbabu", "fedcp", "feddbe", "fedper",
         "fedprox", "fedrep", "hypcluster", "knn-per", "lg-fedavg", "moon", "per-fedavg", "pfedme"],
        ("w",),
    ),
    **dict.fromkeys(["fedem", "fedem-ft"], ("w0", "w1", "w2")),
    "fedccfa": ("w",),
    "fedpac": ("w", "head"),
    "pfedfda": ("w", "gaussian"),
}  # fmt: skip


def test_what_servers_need_sums_of_only():
    """That they do nothing else with it is one of the checks below; "the server must read it" is no way out."""
    assert {name: sums for name in list_methods() if (sums := make_method(name).sums())} == SUMS


@every_method
@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.name)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_check(trial, check):
    verdict = check.judge(trial, trial.cls)
    assert verdict.passed, str(verdict)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory) -> Iterator[Hospitals]:
    places = Hospitals(uneven_data(), ROUNDS, tmp_path_factory.mktemp("hospitals"))
    yield places
    places.close()


@every_method
def test_clients_in_processes_of_their_own_that_get_only_bytes(trial, hospitals):
    found = trial.run(engine=lambda task, method, data: HospitalEngine(hospitals, method))
    assert difference(found, trial.plain) == ""


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Callable[..., Any]]:
    """Calls functions of elsewhere.py in a process that has a second device."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:

        def call(function: str, *args: Any, **kwargs: Any) -> Any:
            return process.submit(_call_elsewhere, function, *args, **kwargs).result(timeout=300)

        yield call


def _call_elsewhere(function: str, *args: Any, **kwargs: Any) -> Any:
    import elsewhere

    return getattr(elsewhere, function)(*args, **kwargs)


def assert_nearly_the_same(scores: list[Any], states: dict[str, bytes], oracle: Finished) -> None:
    expected: Any
    # FedDBE's strong pull makes more of the last digit
    rtol, atol = (1e-4, 5e-6) if oracle.federation.method.name == "feddbe" else (1e-5, 2e-6)
    for found, expected in zip(scores, oracle.scores(), strict=True):
        assert found[:2] == expected[:2]
        assert [(s.client, s.which) for s in found[2]] == [(s.client, s.which) for s in expected[2]]
        assert [s.loss for s in found[2]] == pytest.approx([s.loss for s in expected[2]], rel=1e-3)
        assert found[3:5] == expected[3:5]
    expected_states = oracle.bytes()
    assert states.keys() == expected_states.keys()
    for key, data in states.items():
        mine, theirs = Message.from_bytes(data).flat(), Message.from_bytes(expected_states[key]).flat()
        assert sorted(mine[0]) == sorted(theirs[0])
        for name, tensor in mine[0].items():
            torch.testing.assert_close(tensor, theirs[0][name], rtol=rtol, atol=atol)
        assert mine[1] == pytest.approx(theirs[1], rel=1e-4)
        assert mine[2] == theirs[2]


@every_method
def test_clients_on_another_device_give_the_same_numbers(name, settings, trial, elsewhere):
    there = elsewhere("federation", name, settings, rounds=ROUNDS, data=uneven_data(), participation=0.5)
    assert_nearly_the_same(*there, trial.plain)


@every_method
def test_tokens_in_double_precision_on_another_device(name, settings, elsewhere):
    data, model = token_data(), drawn(ODD["tokens"].make).double()
    there = elsewhere("federation", name, settings, data=data, model=model)
    assert_nearly_the_same(*there, run_federation(make_method(name, settings), data=data, model=model))


@pytest.mark.parametrize(("name", "settings"), [("fedavg", {}), ("fedpac", {"augmented": True, "head_lr": 0.01})])
def test_augmented_images_are_the_same_on_another_device(name, settings, elsewhere):
    data, model = tiny_images()
    there = elsewhere("federation", name, settings, data=data, model=model)
    assert_nearly_the_same(*there, run_federation(make_method(name, settings), data=data, model=model))


@pytest.mark.parametrize("name", ["fedavg", "fedpac", "ditto", "scaffold", "pfedme", "fedfomo"])
def test_steps_on_another_device_pass_nothing_to_and_fro(name, elsewhere):
    """A pass over the data is sent as one list of samples; however many its steps, nobody waits for the device."""
    few, many = (elsewhere("traffic", name, augmented=False, batch=batch, epochs=2) for batch in (20, 2))
    assert few == many
    longer = elsewhere("traffic", name, augmented=False, batch=20, epochs=6)
    assert longer["read"] == few["read"]


def test_augmented_steps_on_another_device_wait_for_nothing(elsewhere):
    few, many = (elsewhere("traffic", "fedavg", augmented=True, batch=batch, epochs=2) for batch in (20, 2))
    assert few["read"] == many["read"]


@every_method
def test_all_clients_are_scored_with_their_own_state(trial, method):
    """The models of clients that did not take part are theirs too, whether they ever did or not."""
    data = uneven_data()
    federation = trial.start(method, engine=Listening)
    task, engine = federation.task, federation.engine
    for _ in range(2):
        before = {i: dict(state) for i, state in engine.snapshot().items()}
        downs = {i: method.send(federation.server, i) for i in range(len(data))} if federation.server.round else None
        report = federation.step()
        if downs is not None and len(method.waves(report.chosen)) == 1:
            assert downs == engine.heard
        scores = {(s.which, s.client): (s.accuracy, s.loss) for s in report.scores}
        assert len(scores) == 2 * len(data)
        for i in range(len(data)):
            client = visit(task, data, i, report.round, dict(engine.snapshot().get(i, {})))
            received = method.received(client, method.send(federation.server, i))
            assert scores["received", i] == evaluate(received, *client.test_set)
            client, down = visit(task, data, i, report.round, before.get(i, {})), engine.heard[i]
            personal = method.personal(client, down, method.local(client, down))
            assert scores["personal", i] == evaluate(personal, *client.test_set)


@every_method
def test_messages_are_counted(trial):
    recorded = trial.run(engine=Recording)
    for report in recorded.reports:
        of_round = [(job.down, up) for job, up in recorded.federation.engine.sent if job.round == report.round]
        assert report.bytes_down == sum(tensor_bytes(down) for down, _ in of_round)
        assert report.bytes_up == sum(tensor_bytes(up) for _, up in of_round)


def tensor_bytes(message: Message) -> int:
    total = 0
    for part in message.values():
        tensors = part.values() if isinstance(part, dict) else [part]
        total += sum(len(bytes(t.numpy().tobytes())) if isinstance(t, torch.Tensor) else 8 for t in tensors)
    return total


def test_a_sample_in_a_message_would_be_seen():
    x, _ = uneven_data()[0].train.tensors()
    assert parts_with_samples(Message(stolen=torch.cat([torch.zeros(3), x[4], torch.zeros(2)])), x)


@every_method
def test_description_and_settings(name, settings, method):
    cls = type(method)
    assert cls.family in FAMILIES
    assert cls.reported in ("received", "personal")
    assert cls.title
    assert cls.__doc__
    for key, field in cls.model_fields.items():
        assert field.description, f"{name}.{key} has no description"
    with pytest.raises(ConfigError, match="no_such_setting"):
        make_method(name, {"no_such_setting": 1})
    with pytest.raises(ConfigError, match="frozen"):
        method.anything = 1
