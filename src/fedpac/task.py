"""The learning task that server and clients agree on before the first round."""

from typing import Annotated, TypeAlias

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from fedpac import native
from fedpac.errors import ConfigError
from fedpac.message import Part, Weights
from fedpac.models import check_model, weights_of

State: TypeAlias = dict[str, Part]


class Recipe(BaseModel):
    """How every client trains locally; the defaults are the paper's for Fashion-MNIST."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: Annotated[float, Field(gt=0, le=100, description="learning rate of local SGD")] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1, description="heavy-ball momentum, fresh every round")] = 0.5
    weight_decay: Annotated[float, Field(ge=0, le=1, description="L2 decay of all trained weights")] = 5e-4
    batch: Annotated[int, Field(ge=1, le=100_000, description="mini-batch size; the last, smaller one is used")] = 50
    epochs: Annotated[int, Field(ge=1, le=10_000, description="E, local passes over the data each round")] = 5


def usable_device(name: str) -> torch.device:
    """The device of that name, with its number, if this machine and this torch have it."""
    try:
        there = torch.ones(1, device=name)
        there.add(1).to("cpu")  # a device may be known, and yet hold no numbers
        return there.device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition(":")[0]
        raise ConfigError(f"device '{name}' cannot be used here ({reason}); 'cpu' always can") from None


class Task:
    """Network, classes, recipe, seed and size of the federation, and the device that clients are trained on.

    Messages, states and all that the server has are on the CPU; a client's visit is on the device from end to end.
    """

    def __init__(
        self,
        model: nn.Module,
        classes: int,
        recipe: Recipe,
        seed: int,
        clients: int,
        rounds: int,
        device: str = "cpu",
    ) -> None:
        check_model(model)
        self.device = usable_device(device)
        native.available()  # build the kernels now, once, and not in every worker
        self.model = native.accelerate(model)
        self.initial: Weights = weights_of(self.model)
        self.classes = classes
        self.recipe = recipe
        self.seed = seed
        self.clients = clients
        self.rounds = rounds
