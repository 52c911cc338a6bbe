"""What is measured, how often, and on how many clients."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedpac.randomness import torch_stream
from fedpac.task import Task


@dataclass(frozen=True)
class Plan:
    """Whose models are scored in one round."""

    received: list[int]  # as received, after the server has merged
    personal: set[int]  # after local training


@dataclass(frozen=True)
class Evaluation:
    """The defaults are the paper's: both accuracies of every client, in every round.

    every            the received model is scored in every so many rounds, and in the last
    personal_every   the same for the personal model; unset, as `every`; 0 never
    absentees        clients that do not take part train as well, only to have their personal model scored. With few
                     participants this costs far more than the round itself
    clients          score only so many clients, drawn anew each time; unset, all of them
    """

    every: int = 1
    personal_every: int | None = None
    absentees: bool = True
    clients: int | None = None

    def plan(self, task: Task, round: int, chosen: Sequence[int], available: Sequence[int]) -> Plan:
        personal_every = self.every if self.personal_every is None else self.personal_every
        asked = self._drawn(task, round, available)
        received = asked if is_due(round, self.every, task.is_last(round)) else []
        due = personal_every and is_due(round, personal_every, task.is_last(round))
        personal = set(asked) if due else set()
        return Plan(list(received), personal if self.absentees else personal & set(chosen))

    def _drawn(self, task: Task, round: int, available: Sequence[int]) -> Sequence[int]:
        if self.clients is None or self.clients >= len(available):
            return available
        drawn = torch.randperm(len(available), generator=torch_stream(task.seed, "evaluation", round=round))
        return sorted(available[place] for place in drawn[: self.clients].tolist())


def is_due(round: int, every: int, last: bool) -> bool:
    return last or round % every == 0
