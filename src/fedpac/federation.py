"""The round loop: choose, send, train, merge, evaluate."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from fedpac.engines import Engine
from fedpac.engines.site import Outcome
from fedpac.message import Message
from fedpac.methods.base import Method, Which
from fedpac.randomness import torch_stream
from fedpac.server import Server
from fedpac.task import Task
from fedpac.threads import one_thread
from fedpac.timing import span


@dataclass(frozen=True)
class Score:
    client: int
    which: Which
    accuracy: float
    loss: float


@dataclass(frozen=True)
class RoundReport:
    """All that is known about one round."""

    round: int
    chosen: list[int]
    scores: list[Score]  # empty in rounds without evaluation
    bytes_down: int
    bytes_up: int
    seconds: float  # the round's own work, evaluation included
    client_seconds: float  # summed over clients
    peer_weights: list[tuple[int, int, float]] = field(default_factory=list)

    def accuracies(self, which: Which) -> list[float]:
        return [s.accuracy for s in self.scores if s.which == which]


def is_evaluated(round: int, every: int, last: int) -> bool:
    return round % every == 0 or round == last


class Federation:
    """One method on one task with one engine. Iterate over `rounds()`; the state is in `server` and `engine.states`."""

    def __init__(
        self, task: Task, method: Method, engine: Engine, *, participation: float = 1.0, evaluate_every: int = 1
    ) -> None:
        self.task = task
        self.method = method
        self.engine = engine
        self.participation = participation
        self.evaluate_every = evaluate_every
        self.server = Server(task)
        method.setup(self.server)

    def choose(self, round: int) -> list[int]:
        """Who takes part: a random share, and everybody in the last round, as in the paper."""
        everybody = self.task.clients
        if round >= self.task.rounds:
            return list(range(everybody))
        count = max(1, min(everybody, int(self.participation * everybody + 0.5)))
        drawn = torch.randperm(everybody, generator=torch_stream(self.task.seed, "sampling", round=round))
        return sorted(drawn[:count].tolist())

    def rounds(self) -> Iterator[RoundReport]:
        while self.server.round < self.task.rounds:
            yield self.step()

    @one_thread()  # the server's sums as well: a run may go on where there are other cores
    @span("server", root=True)
    def step(self) -> RoundReport:
        start = time.perf_counter()
        server, method = self.server, self.method
        server.round += 1
        round = server.round
        chosen = self.choose(round)
        evaluating = is_evaluated(round, self.evaluate_every, self.task.rounds)
        sent = 0

        def messages(clients: Iterable[int]) -> Iterator[tuple[int, Message]]:
            nonlocal sent
            for client in clients:
                down = method.send(server, client)
                sent += down.nbytes
                yield client, down

        outcomes: dict[int, Outcome] = {}
        if evaluating:  # the others rehearse with what they would hear at the beginning of the round
            others = sorted(set(range(self.task.clients)) - set(chosen))
            outcomes |= self.engine.map("rehearse", round, messages(others))
        sent, bytes_up = 0, 0
        waves = method.waves(chosen)
        assert sorted(i for wave in waves for i in wave) == chosen, "every chosen client is in one wave"
        for wave in waves:
            answers = self.engine.map("learn-and-score" if evaluating else "learn", round, messages(wave))
            outcomes |= answers
            replies = {i: o.up for i, o in answers.items() if o.up is not None}
            bytes_up += sum(up.nbytes for up in replies.values())
            with span("merging"):
                method.merge(server, replies)
        bytes_down = sent
        worked = sum(o.seconds for o in outcomes.values())
        scores = [Score(i, "personal", *o.score) for i, o in sorted(outcomes.items()) if o.score]

        if evaluating:
            received = self.engine.map("receive", round, messages(range(self.task.clients)))
            scores += [Score(i, "received", *o.score) for i, o in received.items() if o.score]
            worked += sum(o.seconds for o in received.values())
        return RoundReport(
            round=round,
            chosen=chosen,
            scores=scores,
            bytes_down=bytes_down,
            bytes_up=bytes_up,
            seconds=time.perf_counter() - start,
            client_seconds=worked,
            peer_weights=method.peer_weights(server),
        )
