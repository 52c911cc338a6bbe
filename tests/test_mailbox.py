"""Messages between processes of one machine: in shared memory, or through the pipe where they do not fit."""

import mmap
import multiprocessing
import threading

import pytest
import torch

from fedpac.engines.mailbox import collect, pack, post, shared_memory
from fedpac.message import Message

MESSAGE = Message(
    w={"body.weight": torch.randn(3, 5), "head.bias": torch.randn(7, dtype=torch.float64)},
    turned=torch.arange(12.0).view(3, 4).t(),
    counts=torch.arange(5),
    code=torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8),
    known=torch.tensor([True, False]),
    one=torch.tensor(2.5),
    none=torch.empty(0, 4),
    nothing={},
    share=0.1,
    endless=float("inf"),
)


@pytest.fixture(params=["fits", "too large", "no memory"])
def memory(request):
    size = {"fits": 1 << 20, "too large": 1, "no memory": 0}[request.param]
    return shared_memory(size) if size else None


def exchanged(memory, *messages, keep=True):
    here, there = multiprocessing.Pipe()
    many = [Message(x=torch.randn(5000))] if memory is not None and len(memory) < 1 << 20 else []  # more than a page
    pieces = pack(memory, {"client": 3}, [*messages, *many])
    assert len(pieces) == (1 if memory is not None and len(memory) == 1 << 20 else 2)
    sender = threading.Thread(target=post, args=(here, pieces))  # a pipe holds little
    sender.start()
    contents = collect(there)
    sender.join()
    assert contents.header == {"client": 3}
    return contents.unpack(memory, keep=keep)[: len(messages)]


def test_what_is_collected_is_what_was_posted(memory):
    got, other = exchanged(memory, MESSAGE, Message(n=4))
    assert got == MESSAGE
    assert other == Message(n=4)
    assert got.tensor("turned").is_contiguous()
    assert got.weights("nothing") == {}


def test_tensors_are_aligned_as_torch_aligns_them():
    for tensor in exchanged(shared_memory(1 << 20), MESSAGE, keep=False)[0].flat()[0].values():
        assert tensor.data_ptr() % 64 == 0 or tensor.numel() == 0


def test_what_is_kept_survives_the_next_post():
    memory = shared_memory(1 << 20)
    first = exchanged(memory, Message(x=torch.ones(9)))[0]
    view = exchanged(memory, Message(x=torch.ones(9)), keep=False)[0]
    exchanged(memory, Message(x=torch.zeros(9)))
    assert first.tensor("x").sum() == 9
    assert view.tensor("x").sum() == 0  # which is why a worker answers before it takes the next job


def test_no_memory_is_no_error(monkeypatch):
    def full(*_):
        raise OSError("cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    assert shared_memory(1) is None
