"""What a client may send in place of an honest reply: every lie of it must be seen before the server merges."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedpac.message import Message, Part

Parts: TypeAlias = dict[str, Any]
Lie: TypeAlias = Callable[[Parts], Parts]


def forged(parts: Parts) -> Message:
    """A message of whatever parts: a stranger's bytes have not been through the checks of our own."""
    message = Message()
    message._parts = dict(parts)
    return message


def largest(parts: Parts) -> tuple[str, str | None]:
    """The largest tensor of numbers with a point: its part, and its name in there if that is a set of weights."""
    places: dict[tuple[str, str | None], Tensor] = {}
    for name, part in parts.items():
        for key, tensor in part.items() if isinstance(part, dict) else [(None, part)]:
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                places[name, key] = tensor
    # where nothing travels but an empty set of weights, a lie has to bring a tensor along
    return max(places, key=lambda place: places[place].numel(), default=("w", "brought.along"))


def on_largest(change: Callable[[Tensor], Tensor]) -> Lie:
    def lie(parts: Parts) -> Parts:
        name, key = largest(parts)
        if key is None:
            return {**parts, name: change(parts[name])}
        return {**parts, name: {**parts[name], key: change(parts[name].get(key, torch.ones(2, 3)))}}

    return lie


def on_weights(change: Callable[[dict[str, Tensor]], Part]) -> Lie:
    """On the first set of weights: every method's replies have one."""

    def lie(parts: Parts) -> Parts:
        name = next(name for name, part in parts.items() if isinstance(part, dict))
        return {**parts, name: change(parts[name])}

    return lie


def samples(n: float) -> Lie:
    """That number of samples; in the place of a tensor, where a method does not send how many it has."""

    def lie(parts: Parts) -> Parts:
        tensors = [name for name, part in parts.items() if isinstance(part, Tensor)]
        place = "n" if "n" in parts else (tensors or list(parts))[-1]
        return {**parts, place: n}

    return lie


def without_first(weights: dict[str, Tensor]) -> Part:
    return {name: tensor for name, tensor in weights.items() if name != next(iter(weights))} or {"other": torch.ones(1)}


def renamed(weights: dict[str, Tensor]) -> Part:
    first = next(iter(weights), "nothing")
    return {f"{name}.other" if name == first else name: t for name, t in weights.items()} or {"other": torch.ones(1)}


def transposed(tensor: Tensor) -> Tensor:
    return tensor.T.contiguous() if tensor.ndim == 2 and len(set(tensor.shape)) == 2 else tensor[None]


def with_value(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed.view(-1)[-1] = value
        return changed

    return change


def scaled(parts: Parts, factor: float = 1e6) -> Parts:
    """All weights that travel; where none do, a number of samples that nobody has."""

    def times(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: times(tensor) for name, tensor in part.items()}
        return part * factor if isinstance(part, Tensor) and part.is_floating_point() else part

    larger = {name: times(part) for name, part in parts.items()}
    return larger if largest(parts)[1] != "brought.along" else samples(1e12)(parts)


def of_its_own(parts: Parts) -> Parts:
    """The lie that this method invites: counts that are not n, a cluster that there is not, other clients' names."""
    if "z" in parts:
        return {**parts, "z": 17.0}
    if "ids" in parts:
        return {**parts, "ids": parts["ids"].flip(0) if len(parts["ids"]) > 1 else parts["ids"] + 1}
    for name, part in parts.items():
        if isinstance(part, dict) and "counts" in part:
            return {**parts, name: {**part, "counts": part["counts"] + 1}}
    return samples(math.inf)(parts)


LIES: dict[str, Lie] = {
    "a part missing": lambda parts: {name: part for name, part in parts.items() if name != list(parts)[-1]},
    "a part too many": lambda parts: {**parts, "besides": torch.ones(3)},
    "nothing": lambda parts: {},
    "a row too many": on_largest(lambda t: torch.cat([t, t[-1:]]) if t.ndim else t.expand(2)),
    "one element": on_largest(lambda t: t.reshape(-1)[:1]),
    "transposed": on_largest(transposed),
    "a weight missing": on_weights(without_first),
    "a weight too many": on_weights(lambda w: {**w, "besides": torch.ones(2)}),
    "a weight renamed": on_weights(renamed),
    "a tensor for weights": on_weights(lambda w: torch.ones(max(1, len(w)))),
    "a number for weights": on_weights(lambda w: 1.0),
    "another precision": on_largest(lambda t: t.float() if t.dtype == torch.float64 else t.double()),
    "whole numbers": on_largest(lambda t: t.long()),
    "half precision": on_largest(lambda t: t.half()),
    "sparse": on_largest(lambda t: t.to_sparse()),
    "not a number": on_largest(with_value(math.nan)),
    "infinity": on_largest(with_value(math.inf)),
    "a million times larger": scaled,
    "n = 0": samples(0.0),
    "n = -1": samples(-1.0),
    "n = 0.5": samples(0.5),
    "n = 1e18": samples(1e18),
    "n = NaN": samples(math.nan),
    "a lie of its own": of_its_own,
}  # fmt: skip


def _weights(change: Callable[[Tensor], Tensor]) -> Lie:
    def lie(parts: Parts) -> Parts:
        return {
            name: {key: change(t) if t.is_floating_point() else t for key, t in part.items()}
            if isinstance(part, dict) and not {"counts", "covariance"} & part.keys()
            else part
            for name, part in parts.items()
        }

    return lie


# What looks honest, and is therefore merged: docs/failures.md says so.
HONEST_LOOKING: dict[str, Lie] = {
    "weights of the opposite sign": _weights(torch.neg),
    "zero weights": _weights(torch.zeros_like),
    "weights a hundred times larger": _weights(lambda t: 100 * t),
    "twice as many samples": lambda parts: (
        {**parts, "n": 2 * parts["n"]}
        if "n" in parts and not any(isinstance(part, dict) and "counts" in part for part in parts.values())
        else parts
    ),
}
