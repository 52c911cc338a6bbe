"""What travels between server and client: named weights, tensors and numbers, and nothing else.

A message turns into bytes (safetensors) and back exactly; untrusted bytes are parsed, never executed.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import Any, TypeAlias, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedpac.errors import MessageError
from fedpac.timing import span

Weights: TypeAlias = dict[str, Tensor]


class Payload(ABC):
    """Stands for weights that whoever holds it cannot read: it can be scaled and added, and nothing else.

    key   names the key that opens it, if there is one; only payloads under the same key can be added
    """

    key: str = ""

    @abstractmethod
    def __mul__(self, factor: float) -> "Payload": ...

    @abstractmethod
    def __add__(self, other: "Payload") -> "Payload": ...

    def plus(self, weights: Weights) -> "Payload":
        """The sum with weights that can be read."""
        raise MessageError(f"plaintext weights cannot be added to a {type(self).__name__}")

    @abstractmethod
    def form(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Names, dtypes and shapes of the weights, as far as whoever made it is to be believed."""

    def to_tensors(self) -> Weights:
        """As it travels, and as it is kept in a checkpoint."""
        raise MessageError(f"a {type(self).__name__} has no bytes")


Part: TypeAlias = Weights | Tensor | float | Payload

SEPARATOR = "/"  # parameter names of torch modules hold dots, never slashes


def moved(parts: Mapping[str, Part], device: torch.device) -> dict[str, Part]:
    """The same parts on a device; tensors that are there already are not copied."""

    def move(part: Part) -> Part:
        if isinstance(part, dict):
            return {name: tensor.to(device) for name, tensor in part.items()}
        return part.to(device) if isinstance(part, Tensor) else part

    return {name: move(part) for name, part in parts.items()}


class Message(Mapping[str, Part]):
    """An immutable bag of named parts: a number, a tensor, or a set of weights.

    A number may be infinite (a bound that has not been reached yet), but not NaN, the mark of a failed computation.

    >>> down = Message(w={"head.bias": torch.zeros(3)}, round=4)
    >>> Message.from_bytes(down.to_bytes()) == down
    True
    """

    def __init__(self, /, **parts: Part) -> None:
        self._parts: dict[str, Part] = {name: _checked(name, part) for name, part in parts.items()}

    def __getitem__(self, name: str) -> Part:
        try:
            return self._parts[name]
        except KeyError:
            raise MessageError(
                f"the message has no part '{name}'; it has: {', '.join(sorted(self._parts)) or 'nothing'}"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def weights(self, name: str) -> Weights:
        """A set of weights, or a payload that stands for one: then only sums can be taken of it."""
        part = self[name]
        if not isinstance(part, dict | Payload):
            raise self._wrong(name, "a set of weights")
        return cast(Weights, part)

    def tensor(self, name: str) -> Tensor:
        part = self[name]
        if not isinstance(part, Tensor):
            raise self._wrong(name, "a tensor")
        return part

    def number(self, name: str) -> float:
        part = self[name]
        if not isinstance(part, float):
            raise self._wrong(name, "a number")
        return part

    def _wrong(self, name: str, wanted: str) -> MessageError:
        return MessageError(f"the message part '{name}' is a {type(self[name]).__name__}, not {wanted}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]  # tensors inside

    def __repr__(self) -> str:
        return f"Message({', '.join(sorted(self._parts))}; {self.nbytes:,} bytes)"

    @property
    def nbytes(self) -> int:
        """The payload: bytes of all tensors, and 8 for each number. What a round costs is counted, not claimed."""
        tensors, numbers, _ = self.flat()
        return sum(t.numel() * t.element_size() for t in tensors.values()) + 8 * len(numbers)

    def flat(self) -> tuple[dict[str, Tensor], dict[str, float], list[str]]:
        """Tensors by name, those of weights as part/parameter; numbers; sets of weights that are empty."""
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, float] = {}
        for name, part in self._parts.items():
            if isinstance(part, Tensor):
                tensors[name] = part
            elif isinstance(part, dict | Payload):
                inside = part if isinstance(part, dict) else part.to_tensors()
                tensors |= {f"{name}{SEPARATOR}{key}": value for key, value in inside.items()}
            else:
                numbers[name] = part
        return (
            tensors,
            numbers,
            sorted(name for name, part in self._parts.items() if isinstance(part, dict) and not part),
        )

    @classmethod
    def of_flat(cls, tensors: Mapping[str, Tensor], numbers: Mapping[str, float], empty: Iterable[str]) -> "Message":
        """flat() backwards."""
        weights: dict[str, Weights] = {name: {} for name in empty}
        values: dict[str, Tensor] = {}
        for key, value in tensors.items():
            name, separator, inner = key.partition(SEPARATOR)
            if separator:
                weights.setdefault(name, {})[inner] = value
            else:
                values[name] = value
        parts: dict[str, Part] = {**numbers, **values, **weights}
        if len(parts) < len(numbers) + len(values) + len(weights):
            twice = next(name for name in parts if (name in numbers) + (name in values) + (name in weights) > 1)
            raise MessageError(f"the message part '{twice}' occurs twice (as a number, a tensor or a set of weights)")
        return cls(**parts)

    @span("messages")
    def to_bytes(self) -> bytes:
        tensors, numbers, empty = self.flat()
        # one key, since safetensors does not keep an order of several: equal messages are equal bytes
        metadata = {"fedpac": json.dumps({"numbers": numbers, "empty": empty}, sort_keys=True)}
        # clone() where tensors share memory: safetensors refuses aliases, and the receiver must not see them either
        return save({k: t.detach().cpu().contiguous().clone() for k, t in sorted(tensors.items())}, metadata)

    @classmethod
    @span("messages")
    def from_bytes(cls, data: bytes) -> "Message":
        try:
            return cls.of_flat(load(data), *_metadata(data))
        except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:  # nested too deep, too
            raise MessageError(
                f"{len(data)} bytes are not a fedpac message ({error}); expected safetensors with the metadata "
                "'fedpac', as Message.to_bytes writes it"
            ) from None


def _checked(name: str, part: Any) -> Part:
    if SEPARATOR in name:
        raise MessageError(f"the message part '{name}' must not contain '{SEPARATOR}'")
    if isinstance(part, Tensor | Payload):
        return part
    if isinstance(part, dict):
        for key, tensor in part.items():
            if not isinstance(key, str) or not isinstance(tensor, Tensor):
                what = f"{key!r}, a {type(tensor).__name__}"
                raise MessageError(f"the message part '{name}' has {what}; a set of weights holds tensors by name")
        return part
    if not isinstance(part, Real):
        raise MessageError(
            f"the message part '{name}' is a {type(part).__name__};"
            " a message holds numbers, tensors and sets of weights"
        )
    try:
        number = float(part)
    except OverflowError:
        raise MessageError(f"the message part '{name}' is a number too large for a float") from None
    if math.isnan(number):
        raise MessageError(f"the message part '{name}' is NaN, not a number")
    return number


def _metadata(data: bytes) -> tuple[dict[str, float], list[str]]:
    """Numbers and empty sets of weights, from a safetensors file that load() has already found to be well formed."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    metadata = json.loads(header["__metadata__"]["fedpac"])
    numbers, empty = metadata["numbers"], metadata["empty"]
    if not (isinstance(numbers, dict) and isinstance(empty, list) and all(isinstance(name, str) for name in empty)):
        raise ValueError("its metadata are not named numbers and a list of names")
    return numbers, empty
