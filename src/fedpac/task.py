"""The learning task that server and clients agree on before the first round."""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fedpac import native
from fedpac.criterion import check_criterion
from fedpac.errors import ConfigError
from fedpac.message import Part, Weights
from fedpac.metrics import check_names
from fedpac.model_check import accelerated, check_fits, check_model, check_split, wants_floats
from fedpac.models import Split, precision_of, weights_of, with_forward
from fedpac.mods.base import Mod
from fedpac.recipe import Recipe

State: TypeAlias = dict[str, Part]


def usable_device(name: str) -> torch.device:
    """The device of that name, with its number, if this machine and this torch have it."""
    try:
        there = torch.ones(1, device=name)
        there.add(1).to("cpu")  # a device may be known, and yet hold no numbers
        return there.device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition(":")[0]
        raise ConfigError(f"device '{name}' is not available ({reason}); 'cpu' always is") from None


class Task:
    """Network, classes, recipe, seed and size of the federation, and the device that clients are trained on.

    sample   one input of the network, which must fit it; of floats, zeros will do
    mods     what stands between the method and the wire, at both ends
    metrics  what clients measure of their models beside accuracy and loss
    ended    rounds that were the last ones, before there were to be more

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
        sample: Tensor | None = None,
        mods: Sequence[Mod] = (),
        metrics: Sequence[str] = (),
        ended: Sequence[int] = (),
    ) -> None:
        check_model(model)
        self.device = usable_device(device)
        native.available()  # build the kernels now, once, and not in every worker
        model = with_forward(model)
        if isinstance(model, Split):
            model = check_split(model, sample)
        self.model = accelerated(model, sample)
        self.dtype = precision_of(self.model)
        self.initial: Weights = weights_of(self.model)
        self.buffers = frozenset(name for name, _ in self.model.named_buffers())  # they follow the data, not training
        self.classes = classes  # 0: the target is a number
        self.outputs = classes or 1
        check_criterion(recipe, classes)
        self.recipe = recipe
        self.seed = seed
        self.clients = clients
        self.rounds = rounds
        self.ended = frozenset(ended)
        self.mods = tuple(mods)
        self.metrics = check_names(metrics, classes)
        # a network for whole numbers such as tokens gets them as they are; to any other they are floats
        self.floats_only = sample is not None and wants_floats(self.model, sample, self.dtype)
        # d, the length of the body's output; None where no sample is known
        self.features = None if sample is None else check_fits(self.model, self.cast(sample), self.outputs)

    def is_last(self, round: int) -> bool:
        """Whether everybody takes part and is evaluated, as after the last round."""
        return round >= self.rounds or round in self.ended

    def cast(self, x: Tensor) -> Tensor:
        """Samples as the network takes them: floats in its precision, whole numbers such as tokens as they are."""
        return x.to(self.dtype) if x.is_floating_point() or self.floats_only else x

    def cast_target(self, y: Tensor) -> Tensor:
        """Classes as they are, numbers in the network's precision."""
        return y.to(self.dtype) if y.is_floating_point() else y
