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
import traceback
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import torch

from fedpac import errors
from fedpac.data.clients import ClientData
from fedpac.engines.base import Engine
from fedpac.engines.site import Job, Outcome, Site
from fedpac.errors import RunError
from fedpac.message import Message
from fedpac.methods.base import Method
from fedpac.task import Task

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
            process = _context.Process(target=_work, args=(there, list(ours), task, method, data), daemon=True)
            process.start()
            there.close()
            self.workers.append((process, here))

    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        if not self.workers:
            raise RunError("the engine is closed: its workers have gone")
        try:
            return self._run(jobs)
        except BaseException:
            self.close()  # the round is lost, and nobody would read the other workers' answers
            raise

    def _run(self, jobs: Iterator[Job]) -> list[Outcome]:
        """Whoever is free gets the next job, which was encoded while all were busy."""
        encoded = ((job.client, encode_job(job)) for job in jobs)
        free = [connection for _, connection in self.workers]
        visiting: dict[Connection, int] = {}  # whom the busy workers train
        outcomes: list[Outcome] = []
        following = next(encoded, None)
        while following or visiting:
            answers = []
            if not (following and free):
                for connection in cast(list[Connection], wait(visiting)):
                    with _alive(visiting.pop(connection)):
                        answers.append(connection.recv())
                    free.append(connection)
            while following and free:
                client, parts = following
                connection = free.pop()
                visiting[connection] = client
                with _alive(client):
                    connection.send(parts)
                following = next(encoded, None)
            outcomes += [decode_outcome(*answer) for answer in answers]
        return outcomes

    def close(self) -> None:
        for _, connection in self.workers:
            connection.close()  # the worker sees the end of its jobs and stops
        for process, _ in self.workers:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
        self.workers = []


@contextlib.contextmanager
def _alive(client: int) -> Iterator[None]:
    """Says what it means when a worker's pipe ends, also in the middle of a message (OSError)."""
    try:
        yield
    except (EOFError, OSError):
        raise RunError(
            f"the worker process that trained client {client} ended by itself; "
            "most often the machine ran out of memory: use fewer workers"
        ) from None


def _work(
    connection: Connection, ours: list[Connection], task: Task, method: Method, data: Sequence[ClientData]
) -> None:
    """A worker's life: read a job, do it, answer, until the pipe closes."""
    for inherited in ours:
        inherited.close()  # else the pipe would stay open after the parent has died
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    gc.freeze()  # what was inherited is the parent's to collect; looking at it would copy its pages
    torch.set_num_threads(1)
    site = Site(task, method, data)
    with contextlib.suppress(EOFError, OSError):  # the parent has gone, perhaps in the middle of a message
        while True:
            job = connection.recv()
            try:
                answer = encode_outcome(site.work(decode_job(*job)))
            except Exception as error:
                answer = [encode_error(error), b"", b""]
            connection.send(answer)


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
