"""Engines for the tests alone: one that listens, and clients in processes of their own."""

import json
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from fedpac.data.clients import ClientData, Pool, Samples
from fedpac.engines import Engine, SerialEngine
from fedpac.engines.process import outcome_of, outcome_parts
from fedpac.engines.site import Job, Outcome, Site
from fedpac.engines.store import FolderStore
from fedpac.message import Message
from fedpac.methods import Method, make_method
from fedpac.task import State, Task
from helpers import tiny_task


class Listening(SerialEngine):
    """Knows what each client last heard before it trained, whether it took part or only rehearsed."""

    def __init__(self, task: Task, method: Method, data: Sequence[ClientData]) -> None:
        super().__init__(task, method, data)
        self.heard: dict[int, Message] = {}

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        waiting = list(jobs)
        self.heard |= {job.client: job.down for job in waiting if job.kind != "receive"}
        return super().run(waiting)


class Hospitals:
    """One spawned process for each client. It gets its own samples once, then only bytes; its state is in a folder."""

    def __init__(self, data: Sequence[ClientData], rounds: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.task = tiny_task(len(data), rounds)
        self.folder = folder
        self.federations = 0
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
    """Talks to the hospitals; holds neither data nor states."""

    def __init__(self, hospitals: Hospitals, method: Method) -> None:
        super().__init__(hospitals.task, method)
        self.hospitals = hospitals
        hospitals.federations += 1
        self.folder = hospitals.folder / str(hospitals.federations)
        self.order = {"name": method.name, "settings": method.model_dump(mode="json"), "folder": str(self.folder)}

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        for job in jobs:
            connection = self.hospitals.rooms[job.client][1]
            connection.send_bytes(json.dumps({**self.order, "kind": job.kind, "round": job.round}).encode())
            connection.send_bytes(job.down.to_bytes())
        return [receive(self.hospitals.rooms[job.client][1]) for job in jobs]

    def snapshot(self) -> dict[int, State]:
        """For the test alone: a server cannot look into its sites' folders."""
        states = {i: FolderStore(self.folder / str(i)).newest(i) for i in range(self.task.clients)}
        return {i: state for i, state in states.items() if state}


def receive(connection: Connection) -> Outcome:
    header = json.loads(connection.recv_bytes())
    messages = [Message.from_bytes(connection.recv_bytes())] if header.pop("answered") else []
    return outcome_of(header, [*messages, *[Message()] * len(messages)])[0]


def _hospital(connection: Connection, i: int, clients: int, rounds: int) -> None:
    torch.set_num_threads(1)
    task = tiny_task(clients, rounds)
    own = Message.from_bytes(connection.recv_bytes())

    def part(x: Tensor, y: Tensor) -> Samples:
        return Samples(Pool(x, y), torch.arange(len(y)))

    data = {i: ClientData(part(own.tensor("x"), own.tensor("y")), part(own.tensor("tx"), own.tensor("ty")))}
    while True:
        try:
            order = json.loads(connection.recv_bytes())
            down = Message.from_bytes(connection.recv_bytes())
        except EOFError:
            os._exit(0)  # there is nothing to tidy up, and torch takes seconds to do so
        method, store = make_method(order["name"], order["settings"]), FolderStore(Path(order["folder"]) / str(i))
        outcome = Site(task, method, data, store).work(Job(order["kind"], i, order["round"], down))
        header, messages = outcome_parts(outcome, {})
        connection.send_bytes(json.dumps({**header, "answered": outcome.up is not None}).encode())
        if outcome.up is not None:
            connection.send_bytes(messages[0].to_bytes())
