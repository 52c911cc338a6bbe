"""The oracle: every client in this process, one after the other."""

from collections.abc import Iterable, Sequence

from fedpac.engines.base import Simulation
from fedpac.engines.site import DataSource, Job, Outcome, Site
from fedpac.engines.store import MemoryStore
from fedpac.methods.base import Method
from fedpac.task import Task
from fedpac.threads import one_thread


class SerialEngine(Simulation):
    def __init__(self, task: Task, method: Method, source: DataSource, store: MemoryStore | None = None) -> None:
        super().__init__(task, method, source, store)
        with one_thread():
            self.site = Site(task, method, source, self.store)

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        with one_thread():  # as in a worker
            return [self.site.work(job) for job in jobs]
