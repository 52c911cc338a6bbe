"""Engines that make life hard for a method: clients that finish in odd orders, and clients that share no memory."""

import random
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedpac.engines import AutoEngine, Engine, SerialEngine
from fedpac.engines.site import DataSource, Job, Outcome, Site
from fedpac.engines.store import FolderStore
from fedpac.message import Message
from fedpac.methods import Method
from fedpac.task import State, Task


class Reversed(SerialEngine):
    """The last client answers first."""

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        return super().run(list(jobs)[::-1])


class Shuffled(SerialEngine):
    """Clients work in one order and answer in another."""

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        waiting = list(jobs)
        random.Random(len(waiting)).shuffle(waiting)
        outcomes = list(super().run(waiting))
        random.Random(7).shuffle(outcomes)
        return outcomes


class Moving(AutoEngine):
    """The first visits of a kind are made in this process, all others in workers."""

    short = 0.0


class Recording(SerialEngine):
    """Keeps what was sent and answered in every learning job."""

    def __init__(self, task: Task, method: Method, source: DataSource) -> None:
        super().__init__(task, method, source)
        self.sent: list[tuple[Job, Message]] = []

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        outcomes = list(super().run(jobs))
        pairs = zip(jobs, outcomes, strict=True)
        self.sent += [(job, outcome.up) for job, outcome in pairs if outcome.up is not None]
        return outcomes


class Apart(Engine):
    """Every client at a site of its own, its state in a folder: between server and sites there is nothing but bytes."""

    def __init__(self, task: Task, method: Method, source: DataSource) -> None:
        super().__init__(task, method)
        folder = Path(tempfile.mkdtemp(prefix="fedpac-sites-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # states are asked for after close(), too
        self.stores = {i: FolderStore(folder / str(i)) for i in range(task.clients)}
        self.sites = {i: Site(task, method, {i: source[i]}, store) for i, store in self.stores.items()}

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        for job in jobs:
            outcome = self.sites[job.client].work(replace(job, down=Message.from_bytes(job.down.to_bytes())))
            yield outcome if outcome.up is None else replace(outcome, up=Message.from_bytes(outcome.up.to_bytes()))

    def snapshot(self) -> Mapping[int, State]:
        states = {i: store.newest(i) for i, store in self.stores.items()}
        return {i: state for i, state in states.items() if state}

    def restore(self, states: Mapping[int, State]) -> None:
        for i, state in states.items():
            self.stores[i].save(i, 0, state)
