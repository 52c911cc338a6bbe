"""Engines that make life hard for a method: clients that finish in odd orders, and clients that share no memory."""

import json
import multiprocessing
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fedpac.data.clients import ClientData, Part, Pool
from fedpac.engines import AutoEngine, Engine, SerialEngine
from fedpac.engines.process import job_parts, outcome_of, outcome_parts
from fedpac.engines.site import Job, Outcome, Site
from fedpac.message import Message
from fedpac.methods import Method, make_method
from fedpac.task import Task
from helpers import tiny_task


class Reversed(SerialEngine):
    """The last client answers first."""

    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        return super().run(iter(list(jobs)[::-1]))


class Shuffled(SerialEngine):
    """Clients work in one order and answer in another."""

    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        waiting = list(jobs)
        random.Random(len(waiting)).shuffle(waiting)
        outcomes = list(super().run(iter(waiting)))
        random.Random(7).shuffle(outcomes)
        return outcomes


class Moving(AutoEngine):
    """The first visits of a kind are made in this process, all others in workers."""

    short = 0.0


class Recording(SerialEngine):
    """Keeps what was sent and answered in every learning job."""

    def __init__(self, task: Task, method: Method, data: Sequence[ClientData]) -> None:
        super().__init__(task, method, data)
        self.sent: list[tuple[int, Message, Message]] = []  # (round, down, up)

    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        waiting = list(jobs)
        outcomes = list(super().run(iter(waiting)))
        pairs = zip(waiting, outcomes, strict=True)
        self.sent += [(job.round, job.down, outcome.up) for job, outcome in pairs if outcome.up is not None]
        return outcomes


class Listening(SerialEngine):
    """Knows what each client last heard before it trained, whether it took part or only rehearsed."""

    def __init__(self, task: Task, method: Method, data: Sequence[ClientData]) -> None:
        super().__init__(task, method, data)
        self.heard: dict[int, Message] = {}

    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        waiting = list(jobs)
        self.heard |= {job.client: job.down for job in waiting if job.kind != "receive"}
        return super().run(iter(waiting))


class Hospitals:
    """One spawned process for each client. It gets its own samples once, then only bytes: method, job, state."""

    def __init__(self, data: Sequence[ClientData], rounds: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.rooms = []
        for i, own in enumerate(data):
            here, there = context.Pipe()
            process = context.Process(target=_hospital, args=(there, i, len(data), rounds), daemon=True)
            process.start()
            there.close()
            self.rooms.append((process, here))
            (x, y), (tx, ty) = own.train.tensors(), own.test.tensors()
            here.send_bytes(Message(x=x, y=y, tx=tx, ty=ty).to_bytes())

    def close(self) -> None:
        for _, connection in self.rooms:
            connection.close()
        for process, _ in self.rooms:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()


class HospitalEngine(Engine):
    """Talks to the hospitals; holds neither data nor task."""

    def __init__(self, hospitals: Hospitals, method: Method) -> None:
        super().__init__()
        self.hospitals = hospitals
        self.order = json.dumps({"name": method.name, "settings": method.model_dump(mode="json")}).encode()

    def run(self, jobs: Iterator[Job]) -> Iterable[Outcome]:
        asked: list[Connection] = []
        for job in jobs:
            connection = self.hospitals.rooms[job.client][1]
            connection.send_bytes(self.order)
            send(connection, *job_parts(job))
            asked.append(connection)
        return [outcome_of(*receive(connection)) for connection in asked]


def send(connection: Connection, header: dict[str, Any], messages: Sequence[Message]) -> None:
    connection.send_bytes(json.dumps([header, len(messages)]).encode())
    for message in messages:
        connection.send_bytes(message.to_bytes())


def receive(connection: Connection) -> tuple[dict[str, Any], list[Message]]:
    header, count = json.loads(connection.recv_bytes())
    return header, [Message.from_bytes(connection.recv_bytes()) for _ in range(count)]


def _hospital(connection: Connection, i: int, clients: int, rounds: int) -> None:
    torch.set_num_threads(1)
    task = tiny_task(clients, rounds)
    own = Message.from_bytes(connection.recv_bytes())

    def part(x: Tensor, y: Tensor) -> Part:
        return Part(Pool(x, y), torch.arange(len(y)))

    data = {i: ClientData(part(own.tensor("x"), own.tensor("y")), part(own.tensor("tx"), own.tensor("ty")))}
    while True:
        try:
            order = json.loads(connection.recv_bytes())
            header, (down, state) = receive(connection)
        except EOFError:
            os._exit(0)  # there is nothing to tidy up, and torch takes seconds to do so
        site = Site(task, make_method(order["name"], order["settings"]), data)  # type: ignore[arg-type]
        send(connection, *outcome_parts(site.work(Job(**header, down=down, state=dict(state)))))
