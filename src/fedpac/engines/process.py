"""One single-threaded worker process per core.

Workers are forked, so the data pools are shared memory; jobs and outcomes travel as bytes through a pipe. A worker
remembers nothing between jobs: a client's state travels with its job, so the next free worker takes the next client
and none waits for another's share to finish.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import torch

from fedpac import errors, timing
from fedpac.data.clients import ClientData
from fedpac.engines.base import Engine
from fedpac.engines.site import Job, Outcome, Site
from fedpac.errors import RunError
from fedpac.message import Message
from fedpac.methods.base import Method
from fedpac.task import Task
from fedpac.timing import span

# Forking shares the data and starts at once. Where it is not safe (macOS, Windows) everything is pickled instead.
_context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProcessEngine(Engine):
    def __init__(self, task: Task, method: Method, data: Sequence[ClientData], workers: int | None = None) -> None:
        super().__init__()
        self.workers: list[tuple[Any, Connection]] = []
        count = max(1, min(workers or available_cores(), len(data)))
        ours: list[Connection] = []
        for _ in range(count):
            here, there = _context.Pipe()
            ours.append(here)
            arguments = (there, list(ours), timing.clock is not None, task, method, data)
            process = _context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            there.close()
            self.workers.append((process, here))
        self.threads = ThreadPoolExecutor(count, thread_name_prefix="fedpac-worker")

    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        take = threading.Lock()
        failed = threading.Event()

        def next_job() -> tuple[int, list[bytes]] | None:
            with take:
                job = None if failed.is_set() else next(jobs, None)
            return None if job is None else (job.client, encode_job(job))

        @span("exchange", root=True)
        def drive(connection: Connection) -> list[Outcome]:
            outcomes = []
            job = next_job()
            while job is not None:
                client, parts = job
                try:
                    with span("messages"):
                        connection.send(parts)
                    job = next_job()  # prepared while the worker is busy
                    with span("waiting for the worker"):
                        answer, spent = connection.recv()
                    outcomes.append(decode_outcome(*answer))
                    if timing.clock is not None:
                        timing.clock.add(spent)
                except (EOFError, OSError):  # OSError: it ended in the middle of a message
                    failed.set()
                    raise RunError(
                        f"the worker process that trained client {client} ended by itself; "
                        "most often the machine ran out of memory: use fewer workers"
                    ) from None
                except BaseException:
                    failed.set()  # no worker starts another client of a round that is lost
                    raise
            return outcomes

        with span("waiting for workers"):
            results = list(self.threads.map(drive, [connection for _, connection in self.workers]))
        return [outcome for outcomes in results for outcome in outcomes]

    def close(self) -> None:
        for _, connection in self.workers:
            connection.close()  # the worker sees the end of its jobs and stops
        for process, _ in self.workers:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
        self.threads.shutdown()
        self.workers = []


def _work(
    connection: Connection,
    ours: list[Connection],
    measure: bool,
    task: Task,
    method: Method,
    data: Sequence[ClientData],
) -> None:
    """A worker's life: read a job, do it, answer, until the pipe closes."""
    for inherited in ours:
        inherited.close()  # else the pipe would stay open after the parent has died
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    gc.freeze()  # what was inherited is the parent's to collect; looking at it would copy its pages
    torch.set_num_threads(1)
    timing.clock = clock = timing.Clock() if measure else None
    site = Site(task, method, data)
    # an error of the pipe: the parent has gone, perhaps in the middle of a message
    with contextlib.suppress(EOFError, OSError), span("clients", root=True):
        while True:
            with span("waiting for the server"):
                job = connection.recv()
            try:
                answer = encode_outcome(site.work(decode_job(*job)))
            except Exception as error:
                answer = [encode_error(error), b"", b""]
            connection.send((answer, clock.take() if clock else {}))


# --- jobs and outcomes as bytes: a header in JSON and two messages ------------------------------------------------


def encode_job(job: Job) -> list[bytes]:
    header = json.dumps({"kind": job.kind, "client": job.client, "round": job.round})
    return [header.encode(), job.down.to_bytes(), Message(**job.state).to_bytes()]


def decode_job(header: bytes, down: bytes, state: bytes) -> Job:
    return Job(**json.loads(header), down=Message.from_bytes(down), state=dict(Message.from_bytes(state)))


def encode_outcome(outcome: Outcome) -> list[bytes]:
    header = json.dumps({"client": outcome.client, "score": outcome.score, "seconds": outcome.seconds})
    if outcome.up is None:
        return [header.encode(), b"", b""]
    return [header.encode(), outcome.up.to_bytes(), Message(**outcome.state).to_bytes()]


def encode_error(error: Exception) -> bytes:
    text = str(error) if isinstance(error, errors.FedpacError) else traceback.format_exc()
    return json.dumps({"error": type(error).__name__, "text": text}).encode()


def decode_outcome(header: bytes, up: bytes, state: bytes) -> Outcome:
    head = json.loads(header)
    if "error" in head:
        kind = getattr(errors, head["error"], None)
        raise kind(head["text"]) if kind else RuntimeError(f"in a worker process:\n{head['text']}")
    return Outcome(
        client=head["client"],
        up=Message.from_bytes(up) if up else None,
        state=dict(Message.from_bytes(state)) if state else {},
        score=tuple(head["score"]) if head["score"] else None,
        seconds=head["seconds"],
    )
