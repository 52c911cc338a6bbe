"""Fewer bytes on the wire."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpac.errors import MessageError
from fedpac.message import Message, Part, Weights
from fedpac.mods.base import Context, Mod, Way

INDEX, VALUE = "top-k index", "top-k value"  # no parameter of a torch module has a space in its name


@dataclass(frozen=True)
class Float16(Mod):
    """Single-precision numbers travel in half precision, both ways; what half precision cannot hold stays as it is."""

    def at_server(self, message: Message, context: Context) -> Way:
        return restored((yield halved(message)))

    def at_client(self, message: Message, context: Context) -> Way:
        return halved((yield restored(message)))


@dataclass(frozen=True)
class TopK(Mod):
    """Clients answer with the largest changes only; what they leave out is added to the next round's.

    Of every set of weights that goes both ways, a share `keep` of the differences between what came and what would go
    travels. The sum of what was left out stays at the client (error feedback, Seide et al. 2014; Stich et al. 2018).
    """

    keep: float = 0.1

    def at_server(self, message: Message, context: Context) -> Way:
        answer = yield message
        both = [name for name in answer if isinstance(answer[name], dict) and INDEX in answer.weights(name)]
        return Message(**{**answer, **{name: self.filled_in(name, message, answer) for name in both}})

    def filled_in(self, name: str, message: Message, answer: Message) -> Weights:
        before, sparse = message.weights(name), answer.weights(name)
        flat = flattened(before)
        index, value = sparse[INDEX].long(), sparse.get(VALUE)
        if value is None or index.shape != value.shape or index.dim() != 1:
            raise MessageError(f"the message part '{name}' does not have one value per index")
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(flat):
            raise MessageError(f"the message part '{name}' has an index outside 0 to {len(flat) - 1}")
        flat = flat.index_add(0, index, value.to(flat.dtype))
        others = {key: tensor for key, tensor in sparse.items() if key not in (INDEX, VALUE)}
        return {**like(before, flat), **others}

    def at_client(self, message: Message, context: Context) -> Way:
        answer = yield message
        both = [name for name in answer if name in message and alike(message[name], answer[name])]
        return Message(**{**answer, **{name: self.largest(name, message, answer, context) for name in both}})

    def largest(self, name: str, message: Message, answer: Message, context: Context) -> Weights:
        after = answer.weights(name)
        change = flattened(after) - flattened(message.weights(name))
        if not len(change):
            return after
        kept_back = context.state.get(f"top-k {name}")
        if isinstance(kept_back, Tensor):
            change = change + kept_back.cpu()
        index = change.abs().topk(max(1, round(self.keep * len(change)))).indices.sort().values
        value = change[index]
        context.state[f"top-k {name}"] = change.index_fill(0, index, 0.0)
        others = {key: tensor for key, tensor in after.items() if not tensor.is_floating_point()}
        return {INDEX: index.to(torch.int32), VALUE: value, **others}


def alike(one: Part, other: Part) -> bool:
    """Whether both are sets of weights of the same names and shapes."""
    if not isinstance(one, dict) or not isinstance(other, dict) or one.keys() != other.keys():
        return False
    return all(tensor.shape == other[name].shape for name, tensor in one.items())


def flattened(weights: Weights) -> Tensor:
    """All real numbers in one vector, in the order of their names."""
    tensors = [weights[name].reshape(-1) for name in sorted(weights) if weights[name].is_floating_point()]
    return torch.cat(tensors) if tensors else torch.zeros(0)


def like(weights: Weights, flat: Tensor) -> Weights:
    names = [name for name in sorted(weights) if weights[name].is_floating_point()]
    pieces = torch.split(flat, [weights[name].numel() for name in names]) if names else ()
    return {name: piece.view_as(weights[name]).clone() for name, piece in zip(names, pieces, strict=True)}


def halved(message: Message) -> Message:
    return _changed(message, _half)


def restored(message: Message) -> Message:
    return _changed(message, lambda tensor: tensor.float() if tensor.dtype == torch.float16 else tensor)


def _half(tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.float32:
        return tensor
    half = tensor.half()
    return half if bool(half.isfinite().all()) else tensor


def _changed(message: Message, change: Callable[[Tensor], Tensor]) -> Message:
    def of(part: Part) -> Part:
        if isinstance(part, dict):
            return {name: change(tensor) for name, tensor in part.items()}
        return change(part) if isinstance(part, Tensor) else part

    return Message(**{name: of(part) for name, part in message.items()})
