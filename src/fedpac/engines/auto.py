"""The default: worker processes, unless the visits are so short that sending them costs more than doing them."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from statistics import median
from typing import ClassVar

from fedpac.data.clients import ClientData
from fedpac.engines.base import Engine
from fedpac.engines.process import ProcessEngine
from fedpac.engines.serial import SerialEngine
from fedpac.engines.site import Job, Kind, Outcome
from fedpac.methods.base import Method
from fedpac.task import Task


class AutoEngine(Engine):
    """Goes by how long visits of the same kind have taken. The numbers are the same wherever they are made.

    The first visit of a kind is made here; workers are started when there is something long for them to do.
    """

    short: ClassVar[float] = 2e-3  # seconds; sending a visit to a worker and its answer back takes half of it
    surely_long: ClassVar[float] = 0.1  # even for the first visit of all, which finds nothing prepared

    def __init__(self, task: Task, method: Method, data: Sequence[ClientData], workers: int | None = None) -> None:
        super().__init__()
        self.parts = task, method, data
        self.count = workers
        self.many = task.device.type == "cpu"  # another device works at many things at once by itself
        self.here = SerialEngine(*self.parts)
        self.usual: dict[Kind, float] = {}  # seconds

    @cached_property
    def there(self) -> ProcessEngine:
        return ProcessEngine(*self.parts, self.count)

    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        outcomes: list[Outcome] = []
        job = next(jobs, None)
        while job is not None:
            following = next(jobs, None)  # a visit that stays alone gains nothing from a worker
            if following is not None and self.usual.get(job.kind, -1.0) >= self.short and self.many:
                outcomes += self.there.run(chain([job, following], jobs))
                self.usual[job.kind] = median(outcome.seconds for outcome in outcomes)
                break
            outcomes += self.here.run(iter([job]))
            spent = outcomes[-1].seconds
            self.usual[job.kind] = spent if job.kind in self.usual or spent > self.surely_long else 0.0
            job = following
        return outcomes

    def close(self) -> None:
        if "there" in self.__dict__:
            self.there.close()
