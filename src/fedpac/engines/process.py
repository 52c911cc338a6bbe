"""One single-threaded worker process per core.

Workers are forked, so the data pools are shared memory; jobs and outcomes travel through mailboxes. A worker
remembers nothing between jobs: a client's state travels with its job, so the next free worker takes the next client
and none waits for another's share to finish. A worker that is lost is replaced, and its job done once more.
"""

import contextlib
import gc
import math
import mmap
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, ClassVar, TypeAlias

from fedpac import timing
from fedpac.engines.base import Simulation
from fedpac.engines.lifeline import Parent, cpu_seconds, end_with_parent
from fedpac.engines.mailbox import collect, pack, post, shared_memory
from fedpac.engines.site import DataSource, Failure, Job, Outcome, Site, failure_of
from fedpac.engines.store import MemoryStore
from fedpac.errors import RunError
from fedpac.message import Message
from fedpac.methods.base import Method
from fedpac.task import State, Task
from fedpac.threads import one_thread
from fedpac.timing import span


def _context(task: Task) -> Any:
    """Forking shares the data and starts at once. Where it is not safe (macOS, and a driver of another device than
    the CPU, which does not survive it) everything is pickled instead."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" and task.device.type == "cpu" else "spawn")


ROOM = 8  # of a mailbox, in models: a message may hold several, and what is longer goes through the pipe
TRIES = 2  # of a job whose worker is lost: the second worker that ends in the same job ends because of it
GLANCE = 5.0  # seconds between two looks at a worker that has not answered
STALLED = 120.0  # seconds without any work: it waits for something that will not come


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Boxes: TypeAlias = tuple[mmap.mmap | None, mmap.mmap | None]


@dataclass
class Worker:
    """Two mailboxes in each direction, used in turn: the next job is packed while the worker is busy with this one, and
    its last answer is unpacked while it is busy with the next."""

    process: Any
    connection: Connection
    inboxes: Boxes
    outboxes: Boxes
    turn: int = 0  # the boxes of the next job


class ProcessEngine(Simulation):
    name: ClassVar[str] = "process"

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
        self.deadline = deadline  # seconds for one job
        self.context = _context(task)
        self.workers: list[Worker] = []
        count = max(1, min(workers or available_cores(), task.clients))
        self.threads = ThreadPoolExecutor(count, thread_name_prefix="fedpac-worker")
        try:
            for _ in range(count):
                self.workers.append(self._start())
        except OSError as error:
            begun = len(self.workers)
            self.close()
            raise RunError(
                f"worker process {begun + 1} of {count} could not be started: {error.strerror or error}; use fewer "
                "workers, or raise the limits on open files and processes (ulimit -n, ulimit -u)"
            ) from None

    def _start(self) -> Worker:
        forking = self.context.get_start_method() == "fork"
        room = ROOM * sum(tensor.nbytes for tensor in self.task.initial.values())
        here, there = self.context.Pipe()
        inboxes, outboxes = ((shared_memory(room), shared_memory(room)) if forking else (None, None) for _ in range(2))
        inherited = [worker.connection for worker in self.workers] + [here]
        arguments = (
            there, (inboxes, outboxes), inherited if forking else [], Parent.of_this_thread(),
            timing.clock is not None, self.task, self.method, self.source,
        )  # fmt: skip
        try:
            process = self.context.Process(target=_work, args=arguments, daemon=True)
            process.start()
        except BaseException:
            here.close()
            raise
        finally:
            there.close()
        return Worker(process, here, inboxes, outboxes)

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        if not self.workers:
            raise RunError("the engine is closed: create a new one")
        waiting = deque((job, 1) for job in jobs)
        outcomes: list[Outcome] = []
        while waiting:
            with span("waiting for workers"):
                shifts = list(self.threads.map(lambda worker: self._drive(worker, waiting), self.workers))
            for place, shift in enumerate(shifts):
                for job, outcome, state in shift.done:
                    outcomes.append(outcome)
                    if job.learns and outcome.error is None:
                        self.store.save(job.client, job.round, state)
                if shift.lost is not None:
                    self._replace(place)  # between shifts: a fork copies whatever other threads hold half done
                    job, tries, failure = shift.lost
                    if failure.cause == "lost" and tries < TRIES:
                        waiting.append((job, tries + 1))
                    else:
                        outcomes.append(Outcome(job.client, error=failure))
        return outcomes

    @span("exchange", root=True)
    def _drive(self, worker: Worker, waiting: "deque[tuple[Job, int]]") -> "Shift":
        """Give the worker one job after the other, until there are none left or the worker is lost."""
        shift = Shift([])
        current, following = None, self._packed(worker, waiting)
        try:
            if following is not None:
                post(worker.connection, following.pieces)
            while following is not None:
                current, following = following, self._packed(worker, waiting)  # packed while the worker is busy
                with span("waiting for the worker"):
                    self._wait(worker, current.job)
                    answer = collect(worker.connection)
                if following is not None:
                    post(worker.connection, following.pieces)  # and on it goes, while this answer is unpacked
                messages = answer.unpack(worker.outboxes[current.turn], keep=True)
                shift.done.append((current.job, *outcome_of(answer.header, messages)))
                current = None
                if timing.clock is not None:
                    timing.clock.add({tuple(name): spent for name, spent in answer.header["spent"]})
        except (EOFError, OSError, _LostError) as error:  # OSError: it ended in the middle of a message
            begun = current or following
            assert begun is not None
            if following is not None and following is not begun:
                waiting.appendleft((following.job, following.tries))
            failure = error.failure if isinstance(error, _LostError) else _ended(worker, begun.job)
            shift.lost = begun.job, begun.tries, failure
        return shift

    def _packed(self, worker: Worker, waiting: "deque[tuple[Job, int]]") -> "Parcel | None":
        """The next job with its client's state, in the boxes whose turn it is."""
        try:
            job, tries = waiting.popleft()
        except IndexError:
            return None
        turn = worker.turn
        worker.turn = 1 - turn
        header = {"kind": job.kind, "client": job.client, "round": job.round}
        state = self.store.newest(job.client) if job.kind == "receive" else self.store.before(job.client, job.round)
        return Parcel(job, tries, turn, pack(worker.inboxes[turn], header, [job.down, Message(**state)]))

    def _wait(self, worker: Worker, job: Job) -> None:
        """Until it has answered or ended. One that is late, or does nothing any more, is lost."""
        begun = active = time.monotonic()
        worked = cpu_seconds(worker.process.pid)
        until = math.inf if self.deadline is None else begun + self.deadline
        while not worker.connection.poll(max(0.0, min(GLANCE, until - time.monotonic()))):
            now = time.monotonic()
            if now >= until:
                raise _LostError(
                    Failure(job.client, "deadline", f"client {job.client} did not reply within {self.deadline:g} s")
                )
            before, worked = worked, cpu_seconds(worker.process.pid)
            if worked is None or worked != before:
                active = now
            elif now - active >= STALLED:
                reason = f"the worker process of client {job.client} has been idle for {STALLED:g} s"
                raise _LostError(Failure(job.client, "lost", reason))

    def _replace(self, place: int) -> None:
        lost = self.workers.pop(place)
        _end(lost)
        try:
            self.workers.insert(place, self._start())
        except OSError as error:
            raise RunError(f"a worker process was lost and could not be replaced: {error.strerror or error}") from None

    def close(self) -> None:
        for worker in self.workers:
            worker.connection.close()  # the worker sees the end of its jobs and stops
        for worker in self.workers:
            worker.process.join(timeout=1)  # one that is busy is not waited for: its round is lost
            _end(worker)
        self.threads.shutdown()
        self.workers = []


@dataclass(frozen=True)
class Parcel:
    """A job on its way."""

    job: Job
    tries: int
    turn: int  # its boxes
    pieces: list[bytes | bytearray]


@dataclass
class Shift:
    """What became of the jobs that one worker was given."""

    done: list[tuple[Job, Outcome, State]]
    lost: tuple[Job, int, Failure] | None = None  # the job it was lost with, and how often that was tried


class _LostError(Exception):
    def __init__(self, failure: Failure) -> None:
        self.failure = failure


def _end(worker: Worker) -> None:
    worker.connection.close()
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join()


def _ended(worker: Worker, job: Job) -> Failure:
    worker.process.join(timeout=1)
    code = worker.process.exitcode
    how = f"was killed by signal {-code}" if code is not None and code < 0 else "exited"
    advice = "most often the machine ran out of memory: use fewer workers"
    return Failure(job.client, "lost", f"the worker process that trained client {job.client} {how}; {advice}")


def _work(
    connection: Connection,
    boxes: tuple[Boxes, Boxes],
    inherited: list[Connection],
    parent: Parent,
    measure: bool,
    task: Task,
    method: Method,
    source: DataSource,
) -> None:
    """A worker's life: read a job, do it, answer, until the pipe closes."""
    end_with_parent(parent)
    # One thread before anything else of torch's: a forked process has none of the threads that the pool it inherits
    # counts on, and would wait for them for ever. An error of the pipe: the parent has gone, perhaps in mid-message.
    with one_thread(), contextlib.suppress(EOFError, OSError):
        for other in inherited:
            other.close()  # else the pipes would stay open after the parent has died
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.freeze()  # what was inherited is the parent's to collect; looking at it would copy its pages
        timing.clock = timing.Clock() if measure else None
        _serve(connection, boxes, Site(task, method, source))


@span("clients", root=True)
def _serve(connection: Connection, boxes: tuple[Boxes, Boxes], site: Site) -> None:
    (inboxes, outboxes), turn = boxes, 0
    while True:
        with span("waiting for the server"):
            parcel = collect(connection)
        down, state = parcel.unpack(inboxes[turn], keep=False)
        job = Job(**parcel.header, down=down)
        outcome, state_after = site.visit(job, dict(state))
        spent = [[list(name), seconds] for name, seconds in timing.clock.take().items()] if timing.clock else []
        try:
            header, messages = outcome_parts(outcome, state_after)
            answer = pack(outboxes[turn], {**header, "spent": spent}, messages)
        except Exception as error:  # an answer of what no message can hold
            header, _ = outcome_parts(Outcome(job.client, error=failure_of(job, error)), {})
            answer = pack(outboxes[turn], {**header, "spent": spent}, [])
        post(connection, answer)
        turn = 1 - turn


# --- outcomes as a header and messages ----------------------------------------------------------------------------


def outcome_parts(outcome: Outcome, state: State) -> tuple[dict[str, Any], list[Message]]:
    header = {
        "client": outcome.client, "score": outcome.score, "seconds": outcome.seconds,
        "error": asdict(outcome.error) if outcome.error else None, "measured": dict(outcome.measured),
    }  # fmt: skip
    return header, [] if outcome.up is None else [outcome.up, Message(**state)]


def outcome_of(header: dict[str, Any], messages: Sequence[Message]) -> tuple[Outcome, State]:
    up, state = messages or (None, {})
    score, error = header["score"], header["error"]
    outcome = Outcome(
        client=header["client"],
        up=up,
        score=tuple(score) if score else None,
        seconds=header["seconds"],
        error=Failure(**error) if error else None,
        measured=header["measured"],
    )
    return outcome, dict(state)
