"""The oracle: every client in this process, one after the other."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from fedpac.data.clients import ClientData
from fedpac.engines.base import Engine
from fedpac.engines.site import Job, Outcome, Site
from fedpac.methods.base import Method
from fedpac.task import Task


class SerialEngine(Engine):
    def __init__(self, task: Task, method: Method, data: Sequence[ClientData]) -> None:
        super().__init__()
        self.site = Site(task, method, data)

    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a worker, so that sums are taken in the same order
        try:
            return [self.site.work(job) for job in jobs]
        finally:
            torch.set_num_threads(threads)
