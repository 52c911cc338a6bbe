"""What happens at a client's place: the same few lines on a laptop, in a worker process or in a hospital."""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from fedpac.client import Client
from fedpac.data.clients import ClientData
from fedpac.errors import TrainingError
from fedpac.message import Message, moved
from fedpac.methods.base import Method
from fedpac.task import State, Task
from fedpac.timing import span
from fedpac.training import evaluate

CPU = torch.device("cpu")  # where messages and states are between visits

Kind: TypeAlias = Literal["learn", "learn-and-score", "rehearse", "receive"]


@dataclass(frozen=True)
class Job:
    """One visit to one client.

    learn            train, answer, keep the state
    learn-and-score  the same, and score the personal model on the client's test data
    rehearse         score the personal model that training would give; nothing is kept and nothing answered
    receive          score the model as received
    """

    kind: Kind
    client: int
    round: int
    down: Message
    state: State


@dataclass(frozen=True)
class Outcome:
    client: int
    up: Message | None  # the answer, where the client learned
    state: State
    score: tuple[float, float] | None  # (accuracy, loss) on the client's test data
    seconds: float


class Site:
    """Runs jobs for any of the clients whose data it can reach, one at a time, in one resident network."""

    def __init__(self, task: Task, method: Method, data: Sequence[ClientData]) -> None:
        self.task = task
        self.method = method
        self.data = data
        self.model = copy.deepcopy(task.model).to(task.device)

    @span("clients", root=True)
    def work(self, job: Job) -> Outcome:
        start = time.perf_counter()
        down, state = Message(**moved(job.down, self.task.device)), moved(job.state, self.task.device)
        client = Client(job.client, self.data[job.client], self.task, self.model, job.round, state)
        up, score = None, None
        if job.kind == "receive":
            model = self.method.received(client, down)
            score = evaluate(model, *client.test_set)
        else:
            up = self.method.local(client, down)
            if job.kind != "learn":
                # A predictor may train on a copy of the state (fine-tuning); what it leaves there is not kept.
                audience = copy.copy(client)
                audience.state = dict(client.state)
                score = evaluate(self.method.personal(audience, down, up), *client.test_set)
        if score is not None and score[1] != score[1]:
            raise TrainingError(f"client {job.client}, round {job.round}: the test loss is not a number")
        if up is None or job.kind == "rehearse":
            return Outcome(job.client, None, job.state, score, time.perf_counter() - start)
        answer, kept = Message(**moved(up, CPU)), moved(client.state, CPU)
        return Outcome(job.client, answer, kept, score, time.perf_counter() - start)
