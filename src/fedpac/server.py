"""The shared side of a method: named tensors, and nothing of any client's data."""

from typing import cast

import torch
from torch import Tensor

from fedpac.message import Payload, Weights
from fedpac.optimizers import Optimizer
from fedpac.randomness import torch_stream
from fedpac.task import State, Task

MOMENTS = ("velocity", "first", "second")  # what an optimizer may keep


class Server:
    """Holds a method's shared state. A method stores nothing on itself, so this is all there is to save.

    optimizer   how the server moves to an average (`move`); None: it takes the average as it is
    """

    def __init__(self, task: Task, state: State | None = None, optimizer: Optimizer | None = None) -> None:
        self.task = task
        self.optimizer = optimizer
        self.state: State = state if state is not None else {}
        self.round = 0

    def stream(self, purpose: str) -> torch.Generator:
        return torch_stream(self.task.seed, purpose, None, self.round)

    def move(self, name: str, average: Weights, old: Weights | None = None) -> None:
        """From the weights of that name, or `old`, to the average: all the way, or as the optimizer says.

        The optimizer's moments are kept in the state beside the weights, under names such as 'w velocity'.
        """
        old = self.weights(name) if old is None and name in self.state else old
        if self.optimizer is None or old is None:
            self.state[name] = average
            return
        kept = {key: self.weights(f"{name} {key}") for key in MOMENTS if f"{name} {key}" in self.state}
        self.state[name], moments = self.optimizer.at(self.round).step(old, average, kept, self.task.buffers)
        self.state.update({f"{name} {key}": part for key, part in moments.items()})

    def weights(self, name: str) -> Weights:
        """Weights, or the payload that stands for them."""
        part = self.state[name]
        assert isinstance(part, dict | Payload), f"server state '{name}' holds no weights"
        return cast(Weights, part)

    def tensor(self, name: str) -> Tensor:
        part = self.state[name]
        assert isinstance(part, Tensor), f"server state '{name}' is not a tensor"
        return part
