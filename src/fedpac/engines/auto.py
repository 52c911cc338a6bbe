"""The default: worker processes, unless the visits are so short that sending them costs more than doing them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from statistics import median
from typing import ClassVar

from fedpac.data.clients import ClientData
from fedpac.engines.process import ProcessEngine
from fedpac.engines.serial import SerialEngine
from fedpac.engines.site import Job, Kind, Outcome
from fedpac.methods.base import Method
from fedpac.task import Task


class AutoEngine(ProcessEngine):
    """Goes by how long the last visits of the same kind took. The numbers are the same wherever they are made."""

    short: ClassVar[float] = 2e-3  # seconds; sending a visit to a worker and its answer back takes half of it

    def __init__(self, task: Task, method: Method, data: Sequence[ClientData], workers: int | None = None) -> None:
        super().__init__(task, method, data, workers)
        self.here = SerialEngine(task, method, data)
        self.usual: dict[Kind, float] = {}  # seconds

    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        first = next(jobs, None)
        if first is None:
            return []
        here = self.usual.get(first.kind, math.inf) < self.short
        outcomes = list((self.here.run if here else super().run)(chain([first], jobs)))
        self.usual[first.kind] = median(outcome.seconds for outcome in outcomes)
        return outcomes
