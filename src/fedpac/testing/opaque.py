"""Weights that a server cannot read, to see whether a method's sums() are all that it needs."""

from collections.abc import Iterable, Mapping

import torch

from fedpac.message import Message, Part, Payload, Weights
from fedpac.weights import weighted_sum


class Sealed(Payload):
    """Weights in an envelope: it can be scaled and added, and nothing else can be done with it.

    It keeps the terms of the sum, so that opening it does the very arithmetic that open weights would have seen: a sum
    that is scaled is a term of the next.
    """

    __slots__ = ("_terms",)

    def __init__(self, terms: "list[tuple[float, Weights | Sealed]]") -> None:
        self._terms = terms

    def __mul__(self, factor: float) -> "Sealed":
        if len(self._terms) > 1:
            return Sealed([(factor, self)])
        return Sealed([(coefficient * factor, part) for coefficient, part in self._terms])

    def __add__(self, other: Payload) -> "Sealed":
        if not isinstance(other, Sealed):
            return NotImplemented
        return Sealed(self._terms + other._terms)

    def plus(self, weights: Weights) -> "Sealed":
        return Sealed([*self._terms, (1.0, weights)])

    def form(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        first = self._terms[0][1]
        if isinstance(first, Sealed):
            return first.form()
        return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in first.items()}


def seal(message: Message, names: Iterable[str]) -> Message:
    """The message with these sets of weights in envelopes."""
    return Message(**{**message, **{name: Sealed([(1.0, message.weights(name))]) for name in names}})


def opened(parts: Mapping[str, Part]) -> dict[str, Part]:
    """The parts with all envelopes opened."""
    return {name: _open(part) if isinstance(part, Sealed) else part for name, part in parts.items()}


def _open(sealed: Sealed) -> Weights:
    parts = [_open(part) if isinstance(part, Sealed) else part for _, part in sealed._terms]
    return weighted_sum(parts, [coefficient for coefficient, _ in sealed._terms])
