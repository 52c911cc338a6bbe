"""Replies that are not what they should be: refused before they are merged, and the round goes on without them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from forgeries import HONEST_LOOKING, LIES, Lie, forged

from fedpac.data.clients import ClientData, Pool, Samples
from fedpac.engines import Engine, SerialEngine
from fedpac.engines.site import Failure, Job, Outcome
from fedpac.errors import RunError
from fedpac.evaluation import Evaluation
from fedpac.federation import Federation
from fedpac.message import Message
from fedpac.methods import Method, list_methods, make_method
from fedpac.models import Classifier
from fedpac.replies import accepted
from fedpac.rounds import RoundLostError, RoundReport
from fedpac.task import Task
from helpers import tiny_data, tiny_model, tiny_task

LIAR = 1
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "fed-rod": [{"variant": "hyper"}],
    "fedpac": [{"covariance": "pooled"}],
    "pfedhn": [{"steps": "mean"}],
    "lg-fedavg": [{"warm_start_rounds": 1}],
    "hypcluster": [{"init": "farthest"}],
}
CASES = [(name, settings) for name in list_methods() for settings in [{}, *VARIANTS.get(name, [])]]
every_method = pytest.mark.parametrize(
    "method",
    [make_method(name, settings) for name, settings in CASES],
    ids=["-".join([name, *map(str, settings.values())]) for name, settings in CASES],
)


class Spoiled(SerialEngine):
    """In its last round, one client's reply is not what it made. Keeps what everybody really said in that round."""

    def __init__(self, task: Task, method: Method, data: Sequence[ClientData], lie: Lie | None = None) -> None:
        super().__init__(task, method, data)
        self.lie = lie
        self.said: dict[tuple[str, int], Outcome] = {}

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        outcomes = super().run(jobs)
        self.said |= {(job.kind, job.client): outcome for job, outcome in zip(jobs, outcomes, strict=True)}
        last = jobs[0].round == self.task.rounds
        return [spoiled(outcome, self.lie) if last and outcome.client == LIAR else outcome for outcome in outcomes]


def spoiled(outcome: Outcome, lie: Lie | None) -> Outcome:
    """With another reply in it; without a lie, it has failed."""
    if outcome.up is None:
        return outcome  # it was only asked to score a model
    if lie is None:
        return Outcome(LIAR, error=Failure(LIAR, "error", f"client {LIAR} has a day off"))
    return Outcome(LIAR, forged(lie(dict(outcome.up))), outcome.score, outcome.seconds)


def federation(method: Method, sizes: Sequence[int], rounds: int, **how: Any) -> Federation:
    """The client fails in the last round."""
    data = tiny_data(sizes)
    task = tiny_task(len(data), rounds, sample=data[0].train.tensors()[0][0])
    return Federation(task, method, Spoiled(task, method, data), evaluation=Evaluation(rounds), **how)


@dataclass(frozen=True)
class Without:
    """A federation in whose last round the client failed: what was before it, said in it and left after it."""

    task: Task
    before: bytes
    said: dict[tuple[str, int], Outcome]
    after: bytes
    report: RoundReport

    def with_lie(self, method: Method, lie: Lie) -> tuple[bytes, RoundReport]:
        """The last round once more, in which the client lies and everybody else says the same."""
        again = Federation(
            self.task, method, Replayed(self.task, method, self.said, lie), min_replies=1,
            evaluation=Evaluation(self.task.rounds),
        )  # fmt: skip
        again.server.round = self.task.rounds - 1
        again.server.state = dict(Message.from_bytes(self.before))
        report = again.step()
        return bytes_of(again), report


class Replayed(Engine):
    def __init__(self, task: Task, method: Method, said: dict[tuple[str, int], Outcome], lie: Lie) -> None:
        super().__init__(task, method)
        self.said = said
        self.lie = lie

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        outcomes = [self.said[job.kind, job.client] for job in jobs]
        return [spoiled(outcome, self.lie) if outcome.client == LIAR else outcome for outcome in outcomes]


def bytes_of(federation: Federation) -> bytes:
    return Message(**federation.server.state).to_bytes()


_without: dict[str, Without] = {}


def without_it(method: Method, sizes: Sequence[int], rounds: int) -> Without:
    """Made once for each method and place."""
    key = f"{method!r} {sizes} {rounds}"
    if key not in _without:
        running = federation(method, sizes, rounds, min_replies=1)
        for _ in range(rounds - 1):
            running.step()
        before, engine = bytes_of(running), running.engine
        assert isinstance(engine, Spoiled)
        engine.said = {}
        report = running.step()
        _without[key] = Without(running.task, before, engine.said, bytes_of(running), report)
    return _without[key]


@every_method
@pytest.mark.parametrize("lie", LIES)
def test_a_hostile_reply_changes_nothing(method, lie):
    """In the first round and in the second, one of four and one of two: as if the client had failed, to the bit."""
    for sizes, rounds in product(((7, 12, 1, 9), (7, 12)), (1, 2)):
        expected = without_it(method, sizes, rounds)
        state, report = expected.with_lie(method, LIES[lie])
        (failure,) = report.failed
        assert (failure.client, failure.cause) == (LIAR, "refused")
        assert re.match(rf"client {LIAR}: '\w+", failure.reason)  # and the part
        assert "\n" not in failure.reason
        assert state == expected.after
        assert report.scores == expected.report.scores


@every_method
@pytest.mark.parametrize("lie", HONEST_LOOKING)
def test_what_looks_honest_is_merged(method, lie):
    _, report = without_it(method, (7, 12, 1, 9), 2).with_lie(method, HONEST_LOOKING[lie])
    assert report.failed == []


@every_method
def test_a_hostile_reply_ends_a_run_that_needs_every_client(method):
    running = federation(method, (7, 12, 1, 9), 2)
    assert isinstance(running.engine, Spoiled)
    running.engine.lie = LIES["not a number"]
    running.step()
    with pytest.raises(RunError, match=rf"client {LIAR}: '"):
        running.step()
    assert running.server.round == 1


@every_method
def test_a_round_that_is_lost_leaves_server_and_clients_as_they_were(method):
    """All four are needed, and the second fails: where clients come one by one, the first has been merged by then."""
    running = federation(method, (7, 12, 1, 9), 2, min_replies=4)
    running.step()
    before = everything(running)
    with pytest.raises(
        RoundLostError, match=rf"round 2: \d of at least 4 clients replied .client {LIAR} has a day off"
    ):
        running.step()
    assert everything(running) == before
    assert running.server.round == 1


def everything(running: Federation) -> dict[Any, bytes]:
    states = {client: Message(**state).to_bytes() for client, state in running.engine.snapshot().items()}
    return {"server": bytes_of(running), **states}


def test_running_variances_below_zero_are_refused():
    """Their root is taken: every client would have NaN in the next round."""
    task, method = tiny_task(1, model=tiny_model("norm")), make_method("fedavg")
    server = Federation(task, method, Replayed(task, method, {}, dict)).server
    wrong = {**task.initial, "body.1.running_var": -task.initial["body.1.running_var"]}
    up, description = Message(w=wrong, n=3), method.replies(server, 0, method.send(server, 0))
    _, refused = accepted({0: up}, {0: description})
    assert refused == {0: "client 0: 'w' at 'body.1.running_var' has values outside 0 to 1e+30"}


def test_a_covariance_that_is_none_is_refused():
    """It could not be inverted, and end the round for all."""
    method = make_method("fedpac", {"covariance": "pooled"})

    def lie(parts):
        return {**parts, "statistics": {**parts["statistics"], "scatter": -torch.eye(5, dtype=torch.float64)}}

    expected = without_it(method, (7, 12, 1, 9), 2)
    state, report = expected.with_lie(method, lie)
    assert state == expected.after
    assert "'statistics' at 'scatter' is not a covariance" in report.failed[0].reason


@pytest.mark.parametrize("score", [(1.5, 1.0), (-0.1, 1.0), (float("nan"), 1.0), (0.5, float("nan")), (0.5, -1.0)])
def test_a_score_that_cannot_be_is_refused(score):
    class Boasting(SerialEngine):
        def run(self, jobs):
            return [
                replace(outcome, score=score) if outcome.client == LIAR else outcome for outcome in super().run(jobs)
            ]

    data, method = tiny_data(), make_method("fedavg")
    task = tiny_task(len(data), 1)
    report = Federation(task, method, Boasting(task, method, data), min_replies=1).step()
    assert {(failure.client, failure.cause) for failure in report.failed} == {(LIAR, "refused")}
    assert "the accuracy is" in report.failed[0].reason
    assert LIAR not in {s.client for s in report.scores}


# --- honest replies are never refused -----------------------------------------------------------------------------


def honest_model(kind: str) -> Classifier:
    model = tiny_model("norm" if kind == "norm" else "plain")
    factor = {"zero": 0.0, "tiny": 1e-8, "huge": 1e4}.get(kind, 1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model


def enlarged(client: ClientData, factor: float) -> ClientData:
    def times(part: Samples) -> Samples:
        x, y = part.tensors()
        return Samples(Pool(factor * x, y), torch.arange(len(y)))

    return ClientData(times(client.train), times(client.test))


ODD_DATA = {
    "one sample each": tiny_data((1, 1)),
    "one class each": tiny_data((6, 5, 8), [[0], [1], [2]]),
    "very unequal": tiny_data((1, 100)),
    "alone": tiny_data((9,)),
    "large values": [enlarged(client, 1e3) for client in tiny_data((1, 30))],
    "blank samples": [enlarged(tiny_data((4,))[0], 0.0), *tiny_data((30,))],
}


@pytest.mark.parametrize("name", list_methods())
@pytest.mark.parametrize("data", ODD_DATA)
def test_no_honest_reply_is_refused(name, data):
    """Odd data and odd models: whoever trains, and does not diverge, is merged."""
    clients, method = ODD_DATA[data], make_method(name)
    how = {"sample": clients[0].train.tensors()[0][0], "lr": 1e-7 if data == "large values" else 0.05, "epochs": 1}
    for model in ("plain", "norm", "zero", "tiny", "huge"):
        task = tiny_task(len(clients), 2, honest_model(model), **how)
        running = Federation(task, method, SerialEngine(task, method, clients), min_replies=1, evaluation=Evaluation(9))
        for report in running.rounds():
            assert [failure for failure in report.failed if failure.cause == "refused"] == []
