"""What happens at a client's place: the same few lines on a laptop, in a worker process and in a hospital."""

import copy
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import torch
from torch import nn

from fedpac.client import Client
from fedpac.data.clients import ClientData
from fedpac.engines.store import MemoryStore, StateStore
from fedpac.errors import FedpacError, TrainingError
from fedpac.message import Message, moved
from fedpac.methods.base import Method, Which, returned
from fedpac.mods.base import Context, into_client, out_of_server
from fedpac.task import State, Task
from fedpac.timing import span
from fedpac.training import assess

CPU = torch.device("cpu")  # where messages and states are between visits

Kind: TypeAlias = Literal["learn", "learn-and-score", "rehearse", "receive", "introduce"]
Assessed: TypeAlias = tuple[tuple[float, float] | None, dict[str, float]]  # (accuracy, loss), and what else is measured
Cause: TypeAlias = Literal["error", "deadline", "lost", "refused", "absent"]


class DataSource(Protocol):
    """Where clients' data come from: a list, or an object that loads a client's own when it is asked for."""

    def __getitem__(self, client: int, /) -> ClientData: ...


@dataclass(frozen=True)
class Job:
    """One visit to one client. It carries no state: that is at the site.

    learn            train, answer, keep the state
    learn-and-score  the same, and score the personal model on the client's test data
    rehearse         score the personal model that training would give; nothing is kept and nothing answered
    receive          score the model as received
    introduce        say what a newcomer says of itself

    first            a job of the round before, to be done on the same visit; only for engines that are `ready` for it
    """

    kind: Kind
    client: int
    round: int
    down: Message
    first: "Job | None" = None

    @property
    def learns(self) -> bool:
        return self.kind in ("learn", "learn-and-score")


@dataclass(frozen=True)
class Failure:
    """Why a client did not answer.

    error     its own code or data failed          lost      its process or its connection ended
    deadline  it took too long                     refused   its answer was not what the method asks for
    absent    it was not there to be asked
    """

    client: int
    cause: Cause
    reason: str
    kind: str = ""  # the exception's class, where there was one
    traceback: str = ""

    @property
    def passing(self) -> bool:
        """Whether another try may go better."""
        return self.cause in ("deadline", "lost", "absent")


@dataclass(frozen=True)
class Outcome:
    client: int
    up: Message | None = None  # the answer, where the client learned
    score: tuple[float, float] | None = None  # (accuracy, loss) on the client's test data
    seconds: float = 0.0
    error: Failure | None = None
    measured: Mapping[str, float] = field(default_factory=dict)  # what else the task asks for: 'test/auroc', ...
    first: "Outcome | None" = None  # of the job's `first`


class Site:
    """Owns its clients' data and states, and runs jobs for them, one at a time, in one resident network."""

    def __init__(self, task: Task, method: Method, source: DataSource, store: StateStore | None = None) -> None:
        self.task = task
        self.method = method
        self.source = source
        self.store = MemoryStore() if store is None else store
        self.model = copy.deepcopy(task.model).to(task.device)

    def open(self, client: int, round: int, state: State) -> Client:
        """The client as its method sees it in this visit."""
        return Client(client, self.source[client], self.task, self.model, round, moved(state, self.task.device))

    def work(self, job: Job) -> Outcome:
        """Do the job with the state that is kept here, and keep what was learned."""
        try:
            outcome, state = self.visit(job, self.state_for(job))
            if job.learns and outcome.error is None:
                self.store.save(job.client, job.round, state)
        except FedpacError as error:  # a state that cannot be read or written
            return Outcome(job.client, error=failure_of(job, error))
        return outcome

    def state_for(self, job: Job) -> State:
        store, client = self.store, job.client
        return store.newest(client) if job.kind == "receive" else store.before(client, job.round)

    @span("clients", root=True)
    def visit(self, job: Job, state: State) -> tuple[Outcome, State]:
        """The outcome, and what the client remembers if it learned. A client that fails is an outcome, too."""
        start = time.perf_counter()
        try:
            up, (score, measured), state = self._do(job, state)
        except Exception as error:
            return Outcome(job.client, None, None, time.perf_counter() - start, failure_of(job, error)), {}
        return Outcome(job.client, up, score, time.perf_counter() - start, measured=measured), state

    def _do(self, job: Job, state: State) -> tuple[Message | None, Assessed, State]:
        client = self.open(job.client, job.round, state)
        passage = into_client(self.task.mods, job.down, Context(job.client, job.round, client.state))
        down = Message(**moved(passage.message, self.task.device))
        up, score = None, None
        measured: dict[str, float] = {}
        if job.kind == "introduce":
            hello = returned(self.method, "introduce", self.method.introduce(client, down), Message, "a Message")
            return passage.back(Message(**moved(hello, CPU))), (None, {}), {}
        if job.kind == "receive":
            score, measured = assess(client, self._given("received", client, down))
        else:
            up = returned(self.method, "local", self.method.local(client, down), Message, "a Message, the reply")
            if job.kind != "learn":
                score, measured = assess(client, self._given("personal", audience(client), down, up))
        if score is not None and score[1] != score[1]:
            raise TrainingError(f"client {job.client}, round {job.round}: the test loss is not a number")
        if up is None or not job.learns:
            return None, (score, measured), {}
        up = passage.back(Message(**moved(up, CPU)))
        return up, (score, measured), moved(client.state, CPU)

    def _given(self, which: Which, client: Client, *messages: Message) -> nn.Module:
        model = getattr(self.method, which)(client, *messages)
        return returned(self.method, which, model, nn.Module, "the model that the client predicts with")

    def model_of(self, client: int, which: Which | Literal["new"], round: int, down: Message) -> nn.Module:
        """What the client would predict with on hearing `down`, a 'new' one on being welcomed; nothing is kept."""
        visitor = self.open(client, round, copy.deepcopy(self.store.newest(client)))
        context = Context(client, round, visitor.state)
        arrived = into_client(self.task.mods, out_of_server(self.task.mods, down, context).message, context).message
        down = Message(**moved(arrived, self.task.device))
        if which == "new":
            return self.method.arrival(visitor, down)
        if which == "received":
            return self.method.received(visitor, down)
        return self.method.personal(visitor, down, self.method.local(visitor, down))


def audience(client: Client) -> Client:
    """The same visit, for whoever only looks: a predictor may train on a copy of the state, which is not kept."""
    looking = copy.copy(client)
    looking.state = dict(client.state)
    return looking


def failure_of(job: Job, error: Exception) -> Failure:
    text = str(error) or type(error).__name__
    if isinstance(error, FedpacError):
        return Failure(job.client, "error", text, type(error).__name__)
    where = f"client {job.client}, round {job.round}"
    return Failure(
        job.client, "error", f"{where}: {type(error).__name__}: {text}", type(error).__name__, traceback.format_exc()
    )
