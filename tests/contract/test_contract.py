"""What every method owes to every engine. A new method is tested here by being in the folder of methods."""

import copy
import math
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from typing import Any

import pytest
import torch
from sites import HospitalEngine, Hospitals, Listening, Moving, Recording, Reversed, Shuffled

from fedpac.engines import ProcessEngine, SerialEngine
from fedpac.errors import ConfigError
from fedpac.federation import Federation
from fedpac.message import Message
from fedpac.methods import Method, make_method, methods
from fedpac.training import evaluate
from helpers import INPUTS, Finished, assert_close, run_federation, tiny_data, tiny_images, tiny_model, tiny_task, visit

ROUNDS = 3
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
}
CASES = [(name, settings) for name in methods() for settings in [{}, *VARIANTS.get(name, [])]]
every_method = pytest.mark.parametrize(
    ("name", "settings"), CASES, ids=["-".join([name, *map(str, settings.values())]) for name, settings in CASES]
)


@cache
def federation_data():
    """Unequal sizes, a client with one sample, a class nobody has, and a client with label names of its own."""
    return tiny_data((7, 12, 1, 9), relabel=[None, None, None, torch.tensor([2, 0, 1, 3])])


def run(method: Method, **changes: Any) -> Finished:
    """Two of four clients in a round, all four in the last."""
    return run_federation(method, **{"rounds": ROUNDS, "data": federation_data(), "participation": 0.5, **changes})


_oracles: dict[str, Finished] = {}


@pytest.fixture
def oracle(name: str, settings: dict[str, Any]) -> Finished:
    """The serial run that others must equal, made once for each method."""
    key = f"{name} {settings}"
    if key not in _oracles:
        _oracles[key] = run(make_method(name, settings))
    return _oracles[key]


@pytest.fixture
def method(name: str, settings: dict[str, Any]) -> Method:
    return make_method(name, settings)


@pytest.fixture(scope="module")
def hospitals() -> Iterator[Hospitals]:
    places = Hospitals(federation_data(), ROUNDS)
    yield places
    places.close()


def assert_same(one: Finished, other: Finished) -> None:
    assert one.scores() == other.scores()
    assert one.bytes() == other.bytes()


@every_method
@pytest.mark.parametrize(
    "engine",
    [
        partial(ProcessEngine, workers=1),
        partial(ProcessEngine, workers=2),
        partial(Moving, workers=2),
        Reversed,
        Shuffled,
    ],
    ids=["1 worker", "2 workers", "first workers, then here", "reversed", "shuffled"],
)
def test_every_engine_gives_the_serial_numbers(method, oracle, engine):
    assert_same(run(method, engine=engine), oracle)


@every_method
def test_clients_in_processes_of_their_own_that_get_only_bytes(method, oracle, hospitals):
    assert_same(run(method, engine=lambda task, method, data: HospitalEngine(hospitals, method)), oracle)


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
    for found, expected in zip(scores, oracle.scores(), strict=True):
        assert found[:2] == expected[:2]
        assert [(s.client, s.which) for s in found[2]] == [(s.client, s.which) for s in expected[2]]
        assert [s.loss for s in found[2]] == pytest.approx([s.loss for s in expected[2]], rel=1e-3)
        assert found[3:5] == expected[3:5]
    expected_states = oracle.bytes()
    assert states.keys() == expected_states.keys()
    for key, data in states.items():
        found, expected = Message.from_bytes(data).flat(), Message.from_bytes(expected_states[key]).flat()
        assert_close(found[0], expected[0])
        assert found[1] == pytest.approx(expected[1], rel=1e-4)
        assert found[2] == expected[2]


@every_method
def test_clients_on_another_device_give_the_same_numbers(name, settings, oracle, elsewhere):
    there = elsewhere("federation", name, settings, rounds=ROUNDS, data=federation_data(), participation=0.5)
    assert_nearly_the_same(*there, oracle)


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
def test_stopping_after_every_round_and_starting_anew_from_bytes_changes_nothing(name, settings, oracle):
    saved: dict[str, bytes] = {}
    reports = []
    for t in range(ROUNDS):
        method = make_method(name, settings)
        task = tiny_task(len(federation_data()), ROUNDS)
        engine = SerialEngine(task, method, federation_data())
        federation = Federation(task, method, engine, participation=0.5)
        if saved:
            federation.server.round = t
            federation.server.state = dict(Message.from_bytes(saved.pop("server")))
            engine.states = {int(who.split()[1]): dict(Message.from_bytes(state)) for who, state in saved.items()}
        reports.append(federation.step())
        saved = Finished(task, federation, reports).bytes()
    assert_same(Finished(task, federation, reports), oracle)


@every_method
def test_looking_changes_nothing(method, oracle):
    """Evaluation leaves no trace: with evaluation in the last round only, that round is the same."""
    task = tiny_task(len(federation_data()), ROUNDS)
    engine = SerialEngine(task, method, federation_data())
    federation = Federation(task, method, engine, participation=0.5, evaluate_every=ROUNDS)
    reports = list(federation.rounds())
    blind = Finished(task, federation, reports)
    assert [len(r.scores) for r in reports] == [0, 0, 8]
    assert reports[-1].scores == oracle.reports[-1].scores
    assert blind.bytes() == oracle.bytes()
    for kind in ("receive", "rehearse"):
        engine.map(kind, ROUNDS, ((i, method.send(federation.server, i)) for i in range(task.clients)))
    assert blind.bytes() == oracle.bytes()


@every_method
def test_all_clients_are_scored_with_their_own_state(method):
    """The models of clients that did not take part are theirs too, whether they ever did or not."""
    data = federation_data()
    task = tiny_task(len(data), ROUNDS)
    engine = Listening(task, method, data)
    federation = Federation(task, method, engine, participation=0.5)
    for _ in range(2):
        before = {i: dict(state) for i, state in engine.states.items()}
        downs = {i: method.send(federation.server, i) for i in range(len(data))} if federation.server.round else None
        report = federation.step()
        if downs is not None and len(method.waves(report.chosen)) == 1:
            assert downs == engine.heard
        scores = {(s.which, s.client): (s.accuracy, s.loss) for s in report.scores}
        assert len(scores) == 2 * len(data)
        for i in range(len(data)):
            client = visit(task, data, i, report.round, dict(engine.states.get(i, {})))
            received = method.received(client, method.send(federation.server, i))
            assert scores["received", i] == evaluate(received, *client.test_set)
            client, down = visit(task, data, i, report.round, before.get(i, {})), engine.heard[i]
            personal = method.personal(client, down, method.local(client, down))
            assert scores["personal", i] == evaluate(personal, *client.test_set)


@every_method
def test_messages(name, settings, method, oracle):
    """They survive bytes, are counted right, hold no samples, and are not changed by who receives them."""
    recorded = run(method, engine=Recording)
    engine = recorded.federation.engine
    assert isinstance(engine, Recording)
    samples = torch.cat([own.train.tensors()[0] for own in federation_data()])
    for report in recorded.reports:
        of_round = [(down, up) for t, down, up in engine.sent if t == report.round]
        assert report.bytes_down == sum(tensor_bytes(down) for down, _ in of_round)
        assert report.bytes_up == sum(tensor_bytes(up) for _, up in of_round)
        for message in [m for pair in of_round for m in pair]:
            assert Message.from_bytes(message.to_bytes()) == message
            assert not holds_a_sample(message, samples)
    assert_same(recorded, oracle)  # what was kept while the next rounds ran is what was sent

    task, data = recorded.task, federation_data()
    for i in (1, 2):
        state = copy.deepcopy(recorded.states.get(i, {}))
        down = Message(**copy.deepcopy(dict(method.send(recorded.server, i))))
        saved = down.to_bytes(), Message(**state).to_bytes()
        method.local(visit(task, data, i, ROUNDS + 1, dict(state)), down)
        assert (down.to_bytes(), Message(**state).to_bytes()) == saved
    assert method == make_method(name, settings)  # nothing was stored on it
    assert set(vars(method)) == set(type(method).model_fields)


def tensor_bytes(message: Message) -> int:
    total = 0
    for part in message.values():
        tensors = part.values() if isinstance(part, dict) else [part]
        total += sum(len(bytes(t.numpy().tobytes())) if isinstance(t, torch.Tensor) else 8 for t in tensors)
    return total


def holds_a_sample(message: Message, samples: torch.Tensor) -> bool:
    """Whether six numbers in a row, anywhere in the message, are a training sample."""
    for part in message.values():
        for tensor in part.values() if isinstance(part, dict) else [part]:
            if isinstance(tensor, torch.Tensor) and tensor.numel() >= INPUTS:
                runs = tensor.flatten().double().unfold(0, INPUTS, 1)
                if (torch.cdist(runs, samples.double()) < 1e-6).any():
                    return True
    return False


def test_a_sample_in_a_message_would_be_seen():
    x, _ = federation_data()[0].train.tensors()
    assert holds_a_sample(Message(stolen=torch.cat([torch.zeros(3), x[4], torch.zeros(2)])), x)


@every_method
def test_batch_norm_and_dropout(method):
    """Such a model trains, and depends neither on torch's global random stream nor on the order of clients."""
    runs = []
    for seed, engine in ((1, SerialEngine), (2, Reversed)):
        torch.manual_seed(seed)
        runs.append(run(method, model=tiny_model("norm"), engine=engine))
    assert_same(*runs)
    for part in runs[0].server.state.values():
        if isinstance(part, dict) and "body.1.num_batches_tracked" in part:
            assert part["body.1.num_batches_tracked"].dtype == torch.int64
            assert (part["body.1.running_var"] > 0).all()


@every_method
@pytest.mark.parametrize("kind", ["linear", "headless"])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_body_or_head_without_weights(method, kind):
    assert all(math.isfinite(s.loss) for s in run(method, model=tiny_model(kind), rounds=2).reports[-1].scores)


@every_method
def test_training_helps(method):
    """After a few rounds on well separated classes every method's predictor is far better than a guess, 0.25."""
    data = tiny_data((16, 16, 16), [[0, 1], [1, 2], [2, 3]], tests=20)
    finished = run_federation(method, rounds=6, data=data, epochs=4)
    assert sum(finished.accuracies(method.reported)) / 3 > 0.5


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
    with pytest.raises(ValueError, match="frozen"):
        method.anything = 1
