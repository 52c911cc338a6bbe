"""The oracle: every client in this process, one after the other."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from fedpac.engines.base import Simulation
from fedpac.engines.site import DataSource, Job, Outcome, Site
from fedpac.engines.store import MemoryStore
from fedpac.errors import ConfigError
from fedpac.methods.base import Method
from fedpac.task import Task
from fedpac.threads import one_thread


class SerialEngine(Simulation):
    name: ClassVar[str] = "serial"

    def __init__(
        self,
        task: Task,
        method: Method,
        source: DataSource,
        workers: int | None = None,
        deadline: float | None = None,
        store: MemoryStore | None = None,
    ) -> None:
        super().__init__(task, method, source, store)
        if deadline is not None:
            raise ConfigError(
                "engine 'serial' cannot stop a client that is late: with a deadline, use 'auto' or 'process'"
            )
        with one_thread():
            self.site = Site(task, method, source, self.store)

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        with one_thread():  # as in a worker
            return [self.site.work(job) for job in jobs]
