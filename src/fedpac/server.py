"""The shared side of a method: named tensors, and nothing of any client's data."""

from typing import cast

import torch
from torch import Tensor

from fedpac.message import Payload, Weights
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
        """Weights, or the payload that stands for them."""
        part = self.state[name]
        assert isinstance(part, dict | Payload), f"server state '{name}' holds no weights"
        return cast(Weights, part)

    def tensor(self, name: str) -> Tensor:
        part = self.state[name]
        assert isinstance(part, Tensor), f"server state '{name}' is no tensor"
        return part
