"""The oracle: every client in this process, one after the other."""

from collections.abc import Iterable, Iterator, Sequence

from fedpac.data.clients import ClientData
from fedpac.engines.base import Engine
from fedpac.engines.site import Job, Outcome, Site
from fedpac.methods.base import Method
from fedpac.task import Task
from fedpac.threads import one_thread


class SerialEngine(Engine):
    def __init__(self, task: Task, method: Method, data: Sequence[ClientData]) -> None:
        super().__init__()
        self.site = Site(task, method, data)

    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        with one_thread():  # as in a worker
            return [self.site.work(job) for job in jobs]
