"""Who takes part in a round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from fedpac.randomness import torch_stream
from fedpac.task import Task


class Sampler(Protocol):
    """Any object with this one function. It must be a pure function of its arguments: a resumed run asks again."""

    def choose(self, task: Task, round: int, available: Sequence[int]) -> list[int]:
        """The clients of this round, from those that are available, which come in ascending order."""


@dataclass(frozen=True)
class Uniform:
    """A random share of the clients, drawn anew in every round.

    everybody_last    all of them in the last round, as in the paper, so that every client ends with the newest model
    """

    share: float = 1.0
    everybody_last: bool = True

    def choose(self, task: Task, round: int, available: Sequence[int]) -> list[int]:
        if self.everybody_last and task.is_last(round):
            return list(available)
        count = min(len(available), self.usual(task))
        drawn = torch.randperm(len(available), generator=torch_stream(task.seed, "sampling", round=round))
        return sorted(available[place] for place in drawn[:count].tolist())

    def usual(self, task: Task) -> int:
        """How many take part in a round other than the last, if they are there."""
        return max(1, int(self.share * task.clients + 0.5))


@dataclass(frozen=True)
class Only:
    """Another sampler's choice, without these clients: what a run would have been without them."""

    sampler: Sampler
    without: dict[int, set[int]]  # round -> clients

    def choose(self, task: Task, round: int, available: Sequence[int]) -> list[int]:
        absent = self.without.get(round, set())
        return [client for client in self.sampler.choose(task, round, available) if client not in absent]
