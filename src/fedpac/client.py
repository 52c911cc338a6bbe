"""One participant of the federation."""

from functools import cached_property

import torch
from torch import Tensor, nn

from fedpac.criterion import Criterion, class_weights
from fedpac.data.clients import ClientData, Samples
from fedpac.errors import ConfigError
from fedpac.message import Weights
from fedpac.models import copy_with, load_into
from fedpac.randomness import torch_stream
from fedpac.task import State, Task


class Client:
    """One participant, for the length of one visit: its data, its persistent state and its random streams.

    It knows neither the other clients nor the server. Whatever must survive the visit is in `state`.
    """

    def __init__(self, id: int, data: ClientData, task: Task, model: nn.Module, round: int, state: State) -> None:
        self.id = id
        self.data = data
        self.task = task
        self.recipe = task.recipe
        self.round = round
        self.state = state
        self.model = model  # lent for the visit; holds no state of this client
        self.device = task.device  # where the model, the state and what is received are, too
        self.n = len(data.train)

    @cached_property
    def train_set(self) -> tuple[Tensor, Tensor]:
        return self._samples(self.data.train)

    @cached_property
    def test_set(self) -> tuple[Tensor, Tensor]:
        return self._samples(self.data.test)

    @cached_property
    def validation_set(self) -> tuple[Tensor, Tensor] | None:
        """Held out of the training data to choose by; None where nothing is."""
        return None if self.data.validation is None else self._samples(self.data.validation)

    def _samples(self, part: Samples) -> tuple[Tensor, Tensor]:
        x, y = part.tensors()
        return self.task.cast(x).to(self.device), self.task.cast_target(y).to(self.device)

    @property
    def classes(self) -> int:
        """How many classes there are; an error where a number is predicted."""
        if not self.task.classes:
            raise ConfigError("the method needs classes, but this task is regression")
        return self.task.classes

    @cached_property
    def class_counts(self) -> Tensor:
        return self.data.train.class_counts(self.classes).to(self.device)

    @cached_property
    def criterion(self) -> Criterion:
        """The loss of the recipe, by this client's own class counts where it asks for them."""
        smoothing, numbers = self.recipe.label_smoothing, self.task.classes == 0
        if self.recipe.class_weights is None:
            return Criterion(None, smoothing, numbers)
        return Criterion(class_weights(self.recipe, self.class_counts).to(self.task.dtype), smoothing)

    def rate(self, lr: float | None = None) -> float:
        """That learning rate, or the recipe's, as the schedule has it in this round."""
        return (self.recipe.lr if lr is None else lr) * self.recipe.factor(self.round, self.task.rounds)

    @cached_property
    def initial(self) -> Weights:
        """The common initial weights, where the client trains."""
        return {name: tensor.to(self.device) for name, tensor in self.task.initial.items()}

    def stream(self, purpose: str) -> torch.Generator:
        return torch_stream(self.task.seed, purpose, self.id, self.round)

    def lasting_stream(self, purpose: str) -> torch.Generator:
        """A stream that is the same in every round: for choices a client makes once, such as a validation split."""
        return torch_stream(self.task.seed, purpose, self.id)

    def weights(self, name: str) -> Weights:
        """Weights that the client keeps, or the common initial ones as long as it has none."""
        part = self.state.get(name, self.initial)
        assert isinstance(part, dict), f"client state '{name}' holds no weights"
        return part

    def tensor(self, name: str, default: Tensor | None = None) -> Tensor:
        """A tensor that the client keeps; as long as it has none, the default."""
        part = self.state[name] if default is None else self.state.get(name, default)
        assert isinstance(part, Tensor), f"client state '{name}' is not a tensor"
        return part

    def with_weights(self, weights: Weights) -> nn.Module:
        """The lent network, holding these weights until the next call."""
        return load_into(self.model, weights)

    def own_model(self, weights: Weights) -> nn.Module:
        """A network of its own with these weights, for predictors that need several."""
        return copy_with(self.model, weights)
