"""An engine runs jobs at sites: the only thing that differs between a laptop, a cluster and real hospitals."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Protocol, Self

from fedpac.engines.site import DataSource, Failure, Job, Outcome
from fedpac.engines.store import MemoryStore
from fedpac.methods.base import Method
from fedpac.task import State, Task


class Listener(Protocol):
    """Somebody who is told what goes on, and must neither fail nor take long."""

    def present(self, clients: Sequence[int]) -> None: ...
    def asked(self, jobs: Sequence[Job]) -> None: ...
    def heard(self, outcome: Outcome) -> None: ...


class Engine(ABC):
    """Reaches the clients' sites. A client that fails is an outcome with an error, never an exception.

    One that has a `name` is on offer under it, and is made with (task, method, source, workers, deadline).
    """

    name: ClassVar[str]

    def __init__(self, task: Task, method: Method) -> None:
        self.task = task
        self.method = method
        self.listener: Listener | None = None
        self.selected: int | None = None  # the round that validation data have chosen so far

    def available(self) -> Sequence[int]:
        """The clients that can be asked now, in ascending order."""
        return range(self.task.clients)

    def ready(self) -> bool:
        """Whether the next round could be asked for at once, with jobs that bring along what is left to do of this one.
        That is worth it where each visit is a trip over a network."""
        return False

    def map(self, jobs: Sequence[Job]) -> dict[int, Outcome]:
        """Run the jobs, at most one for a client: one outcome for each, in client order, whoever finished first."""
        if self.listener is not None:
            self.listener.asked(jobs)
        outcomes: dict[int, Outcome] = {}
        for outcome in self.run(jobs):
            outcomes[outcome.client] = outcome
            if self.listener is not None:
                self.listener.heard(outcome)
        return {client: outcomes.get(client, _nothing_of(client)) for client in sorted(job.client for job in jobs)}

    @abstractmethod
    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        """Run the jobs in any order: one outcome for each."""

    def snapshot(self) -> Mapping[int, State]:
        """All clients' states, for a checkpoint; none where they are kept at real sites."""
        return {}

    def restore(self, states: Mapping[int, State]) -> None:  # noqa: B027
        """Go on from a snapshot."""

    def keep(self, round: int) -> None:  # noqa: B027
        """This round counts, and all before it."""

    def forget(self, round: int) -> None:  # noqa: B027
        """This round does not count. Sites that cannot be told find out when they are asked for it again."""

    def close(self) -> None:  # noqa: B027  (an engine in this process has nothing to do)
        """Let go of processes and connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Simulation(Engine):
    """An engine whose clients are all on this machine: it holds their states, and may move them between workers."""

    def __init__(self, task: Task, method: Method, source: DataSource, store: MemoryStore | None = None) -> None:
        super().__init__(task, method)
        self.source = source
        self.store = MemoryStore() if store is None else store

    def snapshot(self) -> Mapping[int, State]:
        return self.store.states

    def restore(self, states: Mapping[int, State]) -> None:
        self.store.restore(states)

    def forget(self, round: int) -> None:
        self.store.forget(round)


def _nothing_of(client: int) -> Outcome:
    return Outcome(client, error=Failure(client, "lost", f"client {client}: no reply"))
