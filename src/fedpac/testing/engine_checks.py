"""What every engine owes, whatever is between the server and the clients, as checks by name."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from fedpac.client import Client
from fedpac.engines.site import Job, Outcome
from fedpac.message import Message, Weights
from fedpac.methods import make_method
from fedpac.methods.fedavg import FedAvg
from fedpac.testing.tiny import EngineFactory, Finished, in_pieces, run_federation, start_federation, uneven_data
from fedpac.testing.verdicts import Check, Verdict, judged, require, require_same

# no state; state of clients; state at the server for each client; waves; clients that weigh their peers
METHODS = ("fedavg", "scaffold", "fedpac", "pfedhn", "fedfomo")
ROUNDS = 3


class Stumbling(FedAvg):
    """FedAvg, but client 1 fails whenever it should learn."""

    name = "stumbling"
    title = "Stumbling"

    def fit(self, client: Client, w: Weights, down: Message) -> Weights:
        if client.id == 1:
            raise ZeroDivisionError("as it should")
        return super().fit(client, w, down)


def check_engine(factory: EngineFactory) -> list[Verdict]:
    """Everything that an engine of yours owes, one verdict each. `factory(task, method, data)` makes the engine."""
    return list(judged(ENGINE_CHECKS, factory, factory))


def how(method: str) -> dict[str, Any]:
    return {"method": make_method(method), "rounds": ROUNDS, "data": uneven_data(), "participation": 0.5}


@cache
def serial(method: str) -> Finished:
    return run_federation(**how(method))


def gives_the_serial_numbers(method: str) -> Any:
    def look(factory: EngineFactory) -> None:
        require_same(run_federation(**how(method), engine=factory), serial(method), f"with {method}")

    return look


def goes_on_from_a_snapshot(factory: EngineFactory) -> str | None:
    federation = start_federation(**how("scaffold"), engine=factory)
    with federation.engine as engine:
        federation.step()
        if not engine.snapshot():
            return "snapshot() is empty: the states are the sites' own"
    found = in_pieces(lambda: start_federation(**how("scaffold"), engine=factory))
    require_same(found, serial("scaffold"), "a run made anew from its snapshot in every round")
    return None


def learned(factory: EngineFactory, method: FedAvg, rounds: tuple[int, ...]) -> Iterator[dict[int, Outcome]]:
    """What everybody answers when asked to learn in these rounds, one after the other."""
    federation = start_federation(method, data=uneven_data(), engine=factory)
    with federation.engine as engine:
        for round in rounds:
            jobs = [Job("learn", i, round, method.send(federation.server, i)) for i in engine.available()]
            yield engine.map(jobs)


def one_outcome_each(factory: EngineFactory) -> None:
    for outcomes in learned(factory, FedAvg(), (1,)):
        require(list(outcomes) == list(range(4)), f"four jobs give outcomes of clients {list(outcomes)}")
        for i, outcome in outcomes.items():
            require(outcome.up is not None and outcome.error is None, f"client {i} does not answer: {outcome.error}")


def failure_is_an_outcome(factory: EngineFactory) -> None:
    for outcomes in learned(factory, Stumbling(), (1,)):
        error = outcomes[1].error if 1 in outcomes else None
        require(error is not None, "a client whose code fails has an outcome without an error")
        assert error is not None
        require("as it should" in error.reason, f"the reason is lost: '{error.reason}'")
        others = [i for i, outcome in outcomes.items() if outcome.up is not None]
        require(others == [0, 2, 3], f"when client 1 of 0 to 3 fails, clients {others} answer")


def repeats_a_round(factory: EngineFactory) -> None:
    method = make_method("scaffold")
    assert isinstance(method, FedAvg)
    _, once, again = learned(factory, method, (1, 2, 2))
    for i, outcome in once.items():
        require(outcome.up == again[i].up, f"client {i} answers something else when round 2 is repeated")


SERIAL = "call Site.work(job) where the client's data are, and bring its outcome back as it is"

ENGINE_CHECKS: tuple[Check[EngineFactory], ...] = (
    Check("one outcome for each job", "run(jobs) gives one outcome for each job, in any order", one_outcome_each),
    *(Check(f"the serial numbers: {method}", SERIAL, gives_the_serial_numbers(method)) for method in METHODS),
    Check(
        "a failure is an outcome",
        "Outcome(client, error=Failure(...)) for the client that fails, and the others' answers",
        failure_is_an_outcome,
    ),
    Check(
        "a repeated round",
        "a client starts from StateStore.before(client, round): nothing is learned twice",
        repeats_a_round,
    ),
    Check(
        "on from a snapshot",
        "restore(snapshot()) in a new engine goes on as if nothing had happened",
        goes_on_from_a_snapshot,
    ),
)
