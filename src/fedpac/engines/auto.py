"""The default: worker processes, unless the visits are so short that sending them costs more than doing them."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from statistics import median
from typing import ClassVar

from fedpac.engines.base import Simulation
from fedpac.engines.process import ProcessEngine
from fedpac.engines.serial import SerialEngine
from fedpac.engines.site import DataSource, Job, Kind, Outcome
from fedpac.methods.base import Method
from fedpac.task import Task


class AutoEngine(Simulation):
    """Goes by how long visits of the same kind have taken. The numbers are the same wherever they are made.

    The first visit of a kind is made here; workers are started when there is something long for them to do. With a
    deadline all visits are made by workers: nobody can end one that is made here.
    """

    name: ClassVar[str] = "auto"
    short: ClassVar[float] = 2e-3  # seconds; sending a visit to a worker and its answer back takes half of it
    surely_long: ClassVar[float] = 0.1  # even for the first visit of all, which finds nothing prepared

    def __init__(
        self, task: Task, method: Method, source: DataSource, workers: int | None = None, deadline: float | None = None
    ) -> None:
        super().__init__(task, method, source)
        self.options = workers, deadline
        self.must_end = deadline is not None
        self.many = task.device.type == "cpu"  # another device works at many things at once by itself
        self.here = SerialEngine(task, method, source, store=self.store)
        self.usual: dict[Kind, float] = {}  # seconds

    @cached_property
    def there(self) -> ProcessEngine:
        return ProcessEngine(self.task, self.method, self.source, *self.options, store=self.store)

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        if self.must_end:
            return self.there.run(jobs)
        outcomes: list[Outcome] = []
        for at, job in enumerate(jobs):
            alone = at + 1 == len(jobs)  # a visit that stays alone gains nothing from a worker
            if not alone and self.usual.get(job.kind, -1.0) >= self.short and self.many:
                outcomes += self.there.run(jobs[at:])
                # a visit that failed says nothing, least of all that the next one had better be made here
                spent = [outcome.seconds for outcome in outcomes if outcome.error is None]
                self.usual[job.kind] = median(spent) if spent else self.usual[job.kind]
                break
            outcomes += self.here.run([job])
            seconds = outcomes[-1].seconds
            self.usual[job.kind] = seconds if job.kind in self.usual or seconds > self.surely_long else 0.0
        return outcomes

    def close(self) -> None:
        if "there" in self.__dict__:
            self.there.close()
