"""One single-threaded worker process per core.

Workers are forked, so the data pools are shared memory; jobs and outcomes travel through mailboxes. A worker
remembers nothing between jobs: a client's state travels with its job, so the next free worker takes the next client
and none waits for another's share to finish.
"""

import contextlib
import gc
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from fedpac import errors, timing
from fedpac.data.clients import ClientData
from fedpac.engines.base import Engine
from fedpac.engines.mailbox import collect, pack, post, shared_memory
from fedpac.engines.site import Job, Outcome, Site
from fedpac.errors import RunError
from fedpac.message import Message
from fedpac.methods.base import Method
from fedpac.task import Task
from fedpac.threads import one_thread
from fedpac.timing import span


def _context(task: Task) -> Any:
    """Forking shares the data and starts at once. Where it is not safe (macOS, and a driver of another device than
    the CPU, which does not survive it) everything is pickled instead."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" and task.device.type == "cpu" else "spawn")


ROOM = 8  # of a mailbox, in models: a message may hold several, and what is longer goes through the pipe


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


class ProcessEngine(Engine):
    def __init__(self, task: Task, method: Method, data: Sequence[ClientData], workers: int | None = None) -> None:
        super().__init__()
        self.workers: list[Worker] = []
        self.failed = threading.Event()
        context = _context(task)
        forking = context.get_start_method() == "fork"
        room = ROOM * sum(tensor.nbytes for tensor in task.initial.values())
        count = max(1, min(workers or available_cores(), len(data)))
        ours: list[Connection] = []
        for _ in range(count):
            here, there = context.Pipe()
            ours.append(here)
            inboxes, outboxes = (
                (shared_memory(room), shared_memory(room)) if forking else (None, None) for _ in range(2)
            )
            arguments = (there, (inboxes, outboxes), list(ours), timing.clock is not None, task, method, data)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            there.close()
            self.workers.append(Worker(process, here, inboxes, outboxes))
        self.threads = ThreadPoolExecutor(count, thread_name_prefix="fedpac-worker")

    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        take = threading.Lock()
        if self.failed.is_set():
            raise RunError("a round was lost, and its workers with it; a new engine can go on from the last checkpoint")

        def next_job(worker: Worker) -> tuple[int, list[bytes | bytearray]] | None:
            """The next client, and its job packed into the boxes whose turn it is."""
            with take:
                job = None if self.failed.is_set() else next(jobs, None)
            return None if job is None else (job.client, pack(worker.inboxes[worker.turn], *job_parts(job)))

        @span("exchange", root=True)
        def drive(worker: Worker) -> list[Outcome]:
            outcomes = []
            client = -1
            try:
                job = next_job(worker)
                if job is not None:
                    client = job[0]
                    post(worker.connection, job[1])
                while job is not None:
                    client, turn = job[0], worker.turn
                    worker.turn = 1 - turn
                    job = next_job(worker)  # packed while the worker is busy
                    with span("waiting for the worker"):
                        answer = collect(worker.connection)
                    if job is not None and "error" not in answer.header:
                        post(worker.connection, job[1])  # and on it goes, while this answer is unpacked
                    outcomes.append(outcome_of(answer.header, answer.unpack(worker.outboxes[turn], keep=True)))
                    if timing.clock is not None:
                        timing.clock.add({tuple(name): spent for name, spent in answer.header["spent"]})
            except (EOFError, OSError):  # OSError: it ended in the middle of a message
                self.failed.set()
                raise RunError(
                    f"the worker process that trained client {client} ended by itself; "
                    "most often the machine ran out of memory: use fewer workers"
                ) from None
            except BaseException:
                self.failed.set()  # no worker starts another client of a round that is lost
                raise
            return outcomes

        with span("waiting for workers"):
            results = list(self.threads.map(drive, self.workers))
        return [outcome for outcomes in results for outcome in outcomes]

    def close(self) -> None:
        for worker in self.workers:
            worker.connection.close()  # the worker sees the end of its jobs and stops
        for worker in self.workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
        self.threads.shutdown()
        self.workers = []


def _work(
    connection: Connection,
    boxes: tuple[Boxes, Boxes],
    ours: list[Connection],
    measure: bool,
    task: Task,
    method: Method,
    data: Sequence[ClientData],
) -> None:
    """A worker's life: read a job, do it, answer, until the pipe closes."""
    (inboxes, outboxes), turn = boxes, 0
    for inherited in ours:
        inherited.close()  # else the pipe would stay open after the parent has died
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    gc.freeze()  # what was inherited is the parent's to collect; looking at it would copy its pages
    timing.clock = clock = timing.Clock() if measure else None
    site = Site(task, method, data)
    # an error of the pipe: the parent has gone, perhaps in the middle of a message
    with contextlib.suppress(EOFError, OSError), one_thread(), span("clients", root=True):
        while True:
            with span("waiting for the server"):
                job = collect(connection)
            down, state = job.unpack(inboxes[turn], keep=False)
            try:
                header, messages = outcome_parts(site.work(Job(**job.header, down=down, state=dict(state))))
                spent = [[list(name), seconds] for name, seconds in clock.take().items()] if clock else []
                answer = pack(outboxes[turn], {**header, "spent": spent}, messages)
            except Exception as error:
                answer = pack(outboxes[turn], error_header(error), [])
            post(connection, answer)
            turn = 1 - turn


# --- jobs and outcomes as a header and messages -------------------------------------------------------------------


def job_parts(job: Job) -> tuple[dict[str, Any], list[Message]]:
    return {"kind": job.kind, "client": job.client, "round": job.round}, [job.down, Message(**job.state)]


def outcome_parts(outcome: Outcome) -> tuple[dict[str, Any], list[Message]]:
    header = {"client": outcome.client, "score": outcome.score, "seconds": outcome.seconds}
    return header, [] if outcome.up is None else [outcome.up, Message(**outcome.state)]


def outcome_of(header: dict[str, Any], messages: Sequence[Message]) -> Outcome:
    if "error" in header:
        kind = getattr(errors, header["error"], None)
        raise kind(header["text"]) if kind else RuntimeError(f"in a worker process:\n{header['text']}")
    return Outcome(
        client=header["client"],
        up=messages[0] if messages else None,
        state=dict(messages[1]) if messages else {},
        score=tuple(header["score"]) if header["score"] else None,
        seconds=header["seconds"],
    )


def error_header(error: Exception) -> dict[str, Any]:
    text = str(error) if isinstance(error, errors.FedpacError) else traceback.format_exc()
    return {"error": type(error).__name__, "text": text}
