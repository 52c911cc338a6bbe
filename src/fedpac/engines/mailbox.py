"""How messages pass between two processes of one machine: a table of contents through a pipe, and the tensors in memory
that both processes see, so that a model is copied once and not a dozen times.
"""

import json
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fedpac.message import Message
from fedpac.timing import span

ALIGNMENT = 64  # as torch aligns its own memory


def shared_memory(size: int) -> mmap.mmap | None:
    """Memory that a process shares with those it forks; None if it cannot. Most systems count written pages only."""
    try:
        return mmap.mmap(-1, max(size, mmap.PAGESIZE))
    except OSError:
        return None


@span("messages")
def pack(memory: mmap.mmap | None, header: dict[str, Any], messages: Sequence[Message]) -> list[bytes | bytearray]:
    """Leaves the tensors in the memory; what is to be sent then is a table of contents.

    Where there is no memory, or they do not fit, the tensors are to be sent too.
    """
    tables, tensors, size = [], [], 0
    for message in messages:
        named, numbers, empty = message.flat()
        rows = []
        for name, tensor in named.items():
            rows.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), size))
            tensors.append((tensor, size))
            size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        tables.append({"numbers": numbers, "empty": empty, "tensors": rows})
    inside = memory if memory is not None and size <= len(memory) else None
    buffer = bytearray(size) if inside is None else inside
    for tensor, at in tensors:
        if tensor.numel():
            _view(buffer, tensor.dtype, tensor.shape, at).copy_(tensor)
    contents = json.dumps({"header": header, "messages": tables, "inside": inside is not None}).encode()
    return [contents] if isinstance(buffer, mmap.mmap) else [contents, buffer]


def post(connection: Connection, pieces: Iterable[bytes | bytearray]) -> None:
    with span("messages"):
        for piece in pieces:
            connection.send_bytes(piece)


@dataclass(frozen=True)
class Contents:
    """What has arrived: a header, and messages whose tensors are still where the other process left them."""

    header: dict[str, Any]
    tables: list[dict[str, Any]]
    sent: bytearray | None  # tensors that came along

    @span("messages")
    def unpack(self, memory: mmap.mmap | None, *, keep: bool) -> list[Message]:
        """The messages. Unless they are to `keep`, their tensors last until the memory is packed again."""
        buffer = memory if self.sent is None else self.sent
        assert buffer is not None
        messages = []
        for table in self.tables:
            named = {}
            for name, kind, shape, at in table["tensors"]:
                dtype: torch.dtype = getattr(torch, kind)
                tensor = _view(buffer, dtype, shape, at) if 0 not in shape else torch.empty(shape, dtype=dtype)
                named[name] = tensor.clone() if keep else tensor
            messages.append(Message.of_flat(named, table["numbers"], table["empty"]))
        return messages


def collect(connection: Connection) -> Contents:
    """Waits for what the other process posts."""
    contents = json.loads(connection.recv_bytes())
    sent = None if contents["inside"] else bytearray(connection.recv_bytes())
    return Contents(contents["header"], contents["messages"], sent)


def _view(buffer: mmap.mmap | bytearray, dtype: torch.dtype, shape: Sequence[int], at: int) -> Tensor:
    return torch.frombuffer(buffer, dtype=dtype, count=torch.Size(shape).numel(), offset=at).view(shape)
