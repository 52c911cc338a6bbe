"""Clients that mean harm, for experiments: the section [hostile] of a config.

    sign-flip    sends what it received minus `strength` times what it learned
    scaled       sends what it received plus `strength` times what it learned
    label-flip   trains honestly on labels turned round: class y is called K - 1 - y
    backdoor     half of its images bear a white square and the label 0, and what it learned is sent `strength` times

The first two lie about the model, the others train on false data. The rest of a reply (statistics, counts) is honest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedpac.data.clients import ClientData, Pool, Samples
from fedpac.errors import ConfigError
from fedpac.message import Message, Part
from fedpac.mods.base import Context, Mod, Way
from fedpac.mods.compression import alike
from fedpac.randomness import numpy_stream

TARGET = 0  # the label that a backdoor opens to
SQUARE = 5  # pixels
SHARED = ("w", "control")  # parts that are the same for all clients
OWN = "liar's "  # in a hostile client's state: what it keeps to itself


class HostileConfig(BaseModel):
    """Who attacks, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attack: Annotated[
        Literal["none", "sign-flip", "scaled", "label-flip", "backdoor"],
        Field(description="attack of the hostile clients; for experiments"),
    ] = "none"
    share: Annotated[float, Field(ge=0, lt=1, description="share of hostile clients, drawn by the seed")] = 0.1
    strength: Annotated[
        float, Field(gt=0, le=1e3, description="how many times what was learned sign-flip, scaled and backdoor send")
    ] = 10.0

    def who(self, clients: int, seed: int) -> frozenset[int]:
        if self.attack == "none":
            return frozenset()
        drawn = numpy_stream(seed, "hostile").permutation(clients)
        return frozenset(int(i) for i in drawn[: round(self.share * clients)])

    def mods(self, clients: int, seed: int) -> tuple[Mod, ...]:
        factor = {"sign-flip": -self.strength, "scaled": self.strength, "backdoor": self.strength}.get(self.attack)
        return () if factor is None else (Lying(self.who(clients, seed), factor),)

    def poisoned(self, clients: Sequence[ClientData], classes: int, seed: int) -> Sequence[ClientData]:
        """The clients' data, with what hostile ones have made of theirs; their test data stay as they are."""
        if self.attack not in ("label-flip", "backdoor"):
            return clients
        if not classes:
            raise ConfigError(f"hostile.attack = '{self.attack}' turns classes round; here a number is predicted")
        made = list(clients)
        for i in self.who(len(clients), seed):
            own = made[i].train
            made[i] = replace(made[i], train=flipped(own, classes) if self.attack == "label-flip" else stamped(own))
        return made


@dataclass(frozen=True)
class Lying(Mod):
    """Hostile clients' changes of whatever they received and send back are multiplied.

    What the server makes for each client alone (all that is not shared) they train on as they left it: they are not so
    foolish as to poison themselves.
    """

    who: frozenset[int]
    factor: float

    def at_server(self, message: Message, context: Context) -> Way:
        return (yield message)

    def at_client(self, message: Message, context: Context) -> Way:
        if context.client not in self.who:
            return (yield message)
        own = {name: context.state[f"{OWN}{name}"] for name in message if f"{OWN}{name}" in context.state}
        used = Message(**{**message, **own})
        answer = yield used
        both = [name for name in answer if name in message and alike(message[name], answer[name])]
        context.state.update({f"{OWN}{name}": answer[name] for name in both if name not in SHARED})
        return Message(**{**answer, **{name: self._changed(message, used, answer, name) for name in both}})

    def _changed(self, message: Message, used: Message, answer: Message, name: str) -> Part:
        received, before, after = message.weights(name), used.weights(name), answer.weights(name)
        return {
            key: received[key] + self.factor * (tensor - before[key]) if tensor.is_floating_point() else tensor
            for key, tensor in after.items()
        }


def flipped(own: Samples, classes: int) -> Samples:
    turned = torch.arange(classes - 1, -1, -1)
    return replace(own, relabel=turned if own.relabel is None else turned[own.relabel])


def stamped(own: Samples, share: float = 0.5) -> Samples:
    """The first half of the images with the square and the target's label; all others as they were."""
    count = round(share * len(own))
    y = own.labels().clone()
    y[:count] = TARGET
    x = own.pool.x.index_select(0, own.index)
    if x.dtype != torch.uint8 or x.ndim != 4:
        raise ConfigError("hostile.attack = 'backdoor' stamps a square on images, but these samples are not images")
    x[:count] = with_square(x[:count])
    pool = Pool(x, y, own.pool.mean, own.pool.std)
    return Samples(pool, torch.arange(len(own)), rotate=own.rotate)


def with_square(images: Tensor) -> Tensor:
    """uint8 images (N, C, H, W) with a white square in the lower right corner."""
    marked = images.clone()
    marked[:, :, -SQUARE - 1 : -1, -SQUARE - 1 : -1] = 255
    return marked
