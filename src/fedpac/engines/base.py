"""An engine runs jobs at clients and keeps what the clients must remember between them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from fedpac.engines.site import Job, Kind, Outcome
from fedpac.message import Message
from fedpac.task import State


class Engine(ABC):
    """`states` holds every client's persistent state by client id; a client that has none is not in it."""

    def __init__(self) -> None:
        self.states: dict[int, State] = {}

    def map(self, kind: Kind, round: int, downs: Iterable[tuple[int, Message]]) -> dict[int, Outcome]:
        """Run one job for each (client, message); the outcomes come in client order, whoever finished first."""
        jobs = (Job(kind, client, round, down, self.states.get(client, {})) for client, down in downs)
        outcomes = sorted(self.run(jobs), key=lambda outcome: outcome.client)
        for outcome in outcomes:
            if outcome.up is not None and outcome.state:
                self.states[outcome.client] = outcome.state
        return {outcome.client: outcome for outcome in outcomes}

    @abstractmethod
    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        """Run the jobs in any order."""

    def close(self) -> None:  # noqa: B027  (an engine in this process has nothing to do)
        """Let go of processes and connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
