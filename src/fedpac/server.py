"""The shared side of a method: named tensors, and nothing of any client's data."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpac.message import Message, Weights
from fedpac.native.vectors import weighted_sum
from fedpac.randomness import torch_stream
from fedpac.task import State, Task


class Server:
    """Holds a method's shared state. A method stores nothing on itself, so this is all there is to save."""

    def __init__(self, task: Task, state: State | None = None) -> None:
        self.task = task
        self.state: State = state if state is not None else {}
        self.round = 0

    def stream(self, purpose: str) -> torch.Generator:
        return torch_stream(self.task.seed, purpose, None, self.round)

    def weights(self, name: str) -> Weights:
        part = self.state[name]
        assert isinstance(part, dict), f"server state '{name}' holds no weights"
        return part

    def tensor(self, name: str) -> Tensor:
        part = self.state[name]
        assert isinstance(part, Tensor), f"server state '{name}' is no tensor"
        return part


def average_of(replies: Mapping[int, Message], name: str) -> Weights:
    """The clients' weights of that name, each counted by its number n of samples."""
    return average({i: up.weights(name) for i, up in replies.items()}, {i: up.number("n") for i, up in replies.items()})


def average(weights: Mapping[int, Weights], shares: Mapping[int, float]) -> Weights:
    """sum_i share_i w_i / sum_i share_i, summed in client order.

    Integer buffers (a batch counter) have no mean: the first client's value is kept.
    """
    total = sum(shares.values())
    first = next(iter(weights.values()))
    mean: Weights = {}
    for name, tensor in first.items():
        if not tensor.is_floating_point():
            mean[name] = tensor.clone()
            continue
        mean[name] = weighted_sum([w[name] for w in weights.values()], [shares[i] / total for i in weights])
    return mean
