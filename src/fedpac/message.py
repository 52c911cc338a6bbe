"""What travels between server and client: named weights, tensors and numbers, and nothing else.

A message turns into bytes (safetensors) and back exactly; untrusted bytes are parsed, never executed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedpac.errors import MessageError
from fedpac.timing import span

Weights: TypeAlias = dict[str, Tensor]
Part: TypeAlias = Weights | Tensor | float

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

    >>> down = Message(w={"head.bias": torch.zeros(3)}, round=4)
    >>> Message.from_bytes(down.to_bytes()) == down
    True
    """

    def __init__(self, **parts: Part) -> None:
        for name, part in parts.items():
            if SEPARATOR in name:
                raise MessageError(f"the message part '{name}' must not contain '{SEPARATOR}'")
            if not isinstance(part, Tensor | dict | Real):
                raise MessageError(
                    f"the message part '{name}' is a {type(part).__name__}; a message holds numbers,"
                    " tensors and sets of weights"
                )
        self._parts: dict[str, Part] = {k: float(v) if isinstance(v, Real) else v for k, v in parts.items()}

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
        part = self[name]
        if not isinstance(part, dict):
            raise self._wrong(name, "a set of weights")
        return part

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
            elif isinstance(part, dict):
                tensors |= {f"{name}{SEPARATOR}{key}": value for key, value in part.items()}
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
        parts: dict[str, Part] = {name: float(number) for name, number in numbers.items()}
        parts |= {name: {} for name in empty}
        for key, value in tensors.items():
            name, _, inner = key.partition(SEPARATOR)
            if not inner:
                parts[name] = value
                continue
            group = parts.setdefault(name, {})
            if not isinstance(group, dict):
                raise MessageError(f"the message part '{name}' is both a value and a set of weights")
            group[inner] = value
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
            tensors, metadata = load(data), _metadata(data)
            numbers = {name: float(number) for name, number in metadata["numbers"].items()}
            empty = [str(name) for name in metadata["empty"]]
        except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise MessageError(
                f"{len(data)} bytes are not a fedpac message ({error}); expected safetensors with the metadata "
                "'fedpac', as Message.to_bytes writes it"
            ) from None
        return cls.of_flat(tensors, numbers, empty)


def _metadata(data: bytes) -> dict[str, Any]:
    """Our metadata in a safetensors file that load() has already found to be well formed."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    metadata: dict[str, Any] = json.loads(header["__metadata__"]["fedpac"])
    return metadata
