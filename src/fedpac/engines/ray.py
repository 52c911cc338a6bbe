"""Simulations that outgrow one machine: actors on a Ray cluster hold sites and do their clients' work.

A client's data go to the first actor that visits it, and stay there; the clients' states are here and travel with the
jobs, as they do to worker processes. So an actor that is lost, or a whole node, takes nothing along: another is
started, and the job is done once more.
"""

import os
import signal
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from fedpac import native
from fedpac.data.clients import ClientData
from fedpac.engines.base import Simulation
from fedpac.engines.process import TRIES, available_cores, outcome_of, outcome_parts
from fedpac.engines.site import DataSource, Failure, Job, Outcome, Site, failure_of
from fedpac.errors import ConfigError, RunError
from fedpac.extras import library
from fedpac.message import Message
from fedpac.methods.base import Method
from fedpac.task import State, Task
from fedpac.threads import one_thread
from fedpac.timing import span
from fedpac.version import __version__

GLANCE = 5.0  # seconds between two looks at what has not answered
STARTUP = 120.0  # seconds until one actor of all must have started


@dataclass(eq=False)
class Actor:
    """A process somewhere on the cluster. While `starting` is set, it waits for a CPU or imports torch."""

    handle: Any
    starting: Any  # a reference to its first answer
    clients: set[int] = field(default_factory=set)  # whose data it holds


@dataclass(frozen=True)
class Errand:
    """A job that an actor was given."""

    actor: Actor
    job: Job
    tries: int
    since: float


class RayEngine(Simulation):
    """One actor for each CPU of the cluster, or as many as `workers` says, but no more than there are clients."""

    name: ClassVar[str] = "ray"

    def __init__(
        self, task: Task, method: Method, source: DataSource, workers: int | None = None, deadline: float | None = None
    ) -> None:
        super().__init__(task, method, source)
        if task.device.type != "cpu":
            raise ConfigError(f"engine 'ray' trains on CPUs, not on '{task.device}'")
        self.deadline = deadline
        self.ray = library("ray", "ray")
        self.started_here = not self.ray.is_initialized()
        if self.started_here:
            _connect(self.ray, workers)
        cpus = int(self.ray.cluster_resources().get("CPU", 0))
        self.count = max(1, min(workers or cpus, task.clients))
        self.common = self.ray.put((task, method))
        self.data: dict[int, Any] = {}  # references to the clients' data
        self.failed_starts = 0
        self.actors: list[Actor] = []
        self.errands: dict[Any, Errand] = {}  # by the reference to their answer
        self.open = True

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        if not self.open:
            raise RunError("the engine is closed: create a new one")
        waiting = deque((job, 1) for job in jobs)
        errands = self.errands = {}
        outcomes: list[Outcome] = []
        alive = time.monotonic()  # when an actor was last seen that has started
        while waiting or errands:
            self._fill()
            self._hand_out(waiting, errands)
            starting = {actor.starting: actor for actor in self.actors if actor.starting is not None}
            with span("waiting for workers"):
                ready, _ = self.ray.wait([*errands, *starting], timeout=self._patience(errands))
            for reference in ready:
                if reference in starting:
                    self._begun(starting[reference])
                    continue
                errand = errands.pop(reference)
                found = self._collect(reference, errand)
                if isinstance(found, Outcome):
                    outcomes.append(found)
                elif errand.tries < TRIES:
                    waiting.append((errand.job, errand.tries + 1))
                else:
                    outcomes.append(Outcome(errand.job.client, error=found))
            outcomes += self._late(errands)
            if any(actor.starting is None for actor in self.actors):
                alive = time.monotonic()
            elif time.monotonic() - alive > STARTUP:
                raise RunError(self._nobody())
        return outcomes

    # --- actors ---

    def _fill(self) -> None:
        """As many actors as there should be. Those for which there is no CPU yet keep nobody waiting."""
        while len(self.actors) < self.count:
            handle = self._start()
            self.actors.append(Actor(handle, handle.open.remote([self.common])))

    def _start(self) -> Any:
        return self.ray.remote(Host).options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD").remote()

    def _begun(self, actor: Actor) -> None:
        try:
            about = self.ray.get(actor.starting)
        except self.ray.exceptions.RayTaskError as error:  # another would fail in the same way
            raise RunError(f"an actor cannot start on its node of the Ray cluster: {_last_line(error)}") from None
        except self.ray.exceptions.RayError as error:
            self.actors.remove(actor)
            self.failed_starts += 1
            if self.failed_starts > 2 * self.count:
                raise RunError(f"no actor can be started on the Ray cluster: {_last_line(error)}") from None
            return
        if about != (here := versions()):
            differing = ", ".join(f"{k} {about[k]} there and {here[k]} here" for k in here if about[k] != here[k])
            raise RunError(f"a node of the Ray cluster would give different results: {differing}")
        actor.starting, self.failed_starts = None, 0

    def _end(self, actor: Actor) -> None:
        self.actors.remove(actor)
        with suppress(self.ray.exceptions.RayError):
            self.ray.kill(actor.handle)

    def _nobody(self) -> str:
        free = self.ray.available_resources().get("CPU", 0)
        return (
            f"no actor has started for {STARTUP:g} s: each needs one CPU, and {free:g} of the Ray cluster's "
            f"{self.ray.cluster_resources().get('CPU', 0):g} are free"
        )

    # --- jobs ---

    def _hand_out(self, waiting: "deque[tuple[Job, int]]", errands: dict[Any, Errand]) -> None:
        busy = {errand.actor for errand in errands.values()}
        for actor in [actor for actor in self.actors if actor.starting is None and actor not in busy]:
            if not waiting:
                return
            job, tries = self._next(actor, waiting)
            state = self.store.newest(job.client) if job.kind == "receive" else self.store.before(job.client, job.round)
            if job.client not in self.data:
                self.data[job.client] = self.ray.put(self.source[job.client].alone())
            actor.clients.add(job.client)
            with span("messages"):
                sent = job.down.to_bytes(), Message(**state).to_bytes()
            # in a list, a reference stays one: the data are fetched only if the actor does not hold them
            reference = actor.handle.work.remote(job.kind, job.client, job.round, *sent, [self.data[job.client]])
            errands[reference] = Errand(actor, job, tries, time.monotonic())

    def _next(self, actor: Actor, waiting: "deque[tuple[Job, int]]") -> tuple[Job, int]:
        """A client that this actor knows; else one that nobody knows; else the first."""
        known = {client for other in self.actors for client in other.clients}
        for fits in (actor.clients.__contains__, lambda client: client not in known):
            for entry in waiting:
                if fits(entry[0].client):
                    waiting.remove(entry)
                    return entry
        return waiting.popleft()

    def _collect(self, reference: Any, errand: Errand) -> Outcome | Failure:
        """What came of the errand; a failure if the actor was lost with it."""
        job = errand.job
        try:
            header, blobs = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:  # our own code, or what it imports, failed there
            return Outcome(job.client, error=failure_of(job, error))
        except self.ray.exceptions.RayError as error:
            self._end(errand.actor)
            reason = f"the Ray actor that trained client {job.client} was lost: {_last_line(error)}"
            return Failure(job.client, "lost", reason)
        with span("messages"):
            outcome, state = outcome_of(header, [Message.from_bytes(blob) for blob in blobs])
        if job.learns and outcome.error is None:
            self.store.save(job.client, job.round, state)
        return outcome

    def _patience(self, errands: dict[Any, Errand]) -> float:
        if self.deadline is None or not errands:
            return GLANCE
        first = min(errand.since for errand in errands.values())
        return max(0.0, min(GLANCE, first + self.deadline - time.monotonic()))

    def _late(self, errands: dict[Any, Errand]) -> list[Outcome]:
        """Those who have had their time: their actors are ended."""
        if self.deadline is None:
            return []
        now, outcomes = time.monotonic(), []
        for reference, errand in list(errands.items()):
            if now - errand.since >= self.deadline:
                del errands[reference]
                self._end(errand.actor)
                client = errand.job.client
                reason = f"client {client} did not reply within {self.deadline:g} s"
                outcomes.append(Outcome(client, error=Failure(client, "deadline", reason)))
        return outcomes

    def close(self) -> None:
        if self.open:
            self.open = False
            for actor in list(self.actors):
                self._end(actor)
            self.data = {}
            if self.started_here:
                self.ray.shutdown()


class Host:
    """What an actor is: the sites of the clients that it was asked to visit."""

    def open(self, common: list[Any]) -> dict[str, str]:
        """Get ready for a method on a task; says what this node has."""
        task, method = library("ray", "ray").get(common[0])
        self.data: dict[int, ClientData] = {}
        with one_thread():
            self.site = Site(task, method, self.data)
        return versions()

    def work(
        self, kind: Any, client: int, round: int, down: bytes, state: bytes, data: list[Any]
    ) -> tuple[dict[str, Any], list[bytes]]:
        if client not in self.data:
            self.data[client] = library("ray", "ray").get(data[0])
        job = Job(kind, client, round, Message.from_bytes(down))
        with one_thread():
            outcome, after = self.site.visit(job, dict(Message.from_bytes(state)))
            try:
                return _packed(outcome, after)
            except Exception as error:  # an answer of what no message can hold
                return _packed(Outcome(client, error=failure_of(job, error)), {})


def _packed(outcome: Outcome, state: State) -> tuple[dict[str, Any], list[bytes]]:
    header, messages = outcome_parts(outcome, state)
    return header, [message.to_bytes() for message in messages]


def versions() -> dict[str, str]:
    """What a node must have in common with this one to give the same numbers."""
    vectors = torch.backends.cpu.get_cpu_capability()
    kernels = f"{'native' if native.available() else 'torch'} for {vectors}"
    return {"fedpac": __version__, "torch": torch.__version__, "kernels": kernels}


def _connect(ray: Any, workers: int | None) -> None:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else 15: actors would starve beside any other program
    address = os.environ.get("RAY_ADDRESS")
    where = {"address": address} if address else {"address": "local", "num_cpus": workers or available_cores()}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**where, include_dashboard=False if not address else None, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        place = f"the Ray cluster at {address} cannot be reached" if address else "no Ray cluster can be started here"
        raise RunError(f"{place}: {_last_line(error)}") from None
    with suppress(ValueError):  # Ray takes the signal for itself, where the thread may: it is the program's to handle
        signal.signal(signal.SIGTERM, before)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
