"""Bytes that claim to be a message, damaged or forged: a message that is one, or a MessageError."""

import json
import math

import numpy as np
import torch

from fedpac.message import Message
from fuzzing import budget, damaged, fuzz

VALID = [
    Message(w={"body.0.weight": torch.ones(4, 3), "head.bias": torch.zeros(3)}, n=17).to_bytes(),
    Message(peers=torch.arange(3), mask=torch.ones(2) > 0, half=torch.ones(2, dtype=torch.bfloat16)).to_bytes(),
    Message(own={}, loss=0.25, bound=float("inf"), empty=torch.zeros(0, 3)).to_bytes(),
    Message().to_bytes(),
]


def read(data: bytes) -> None:
    """What can be read can be sent on, and is the same message then."""
    message = Message.from_bytes(data)
    assert Message.from_bytes(message.to_bytes()) == message
    assert len(repr(message)) < 100_000


def read_damaged(rng: np.random.Generator) -> None:
    read(damaged(VALID[rng.integers(len(VALID))], rng))


# What JSON can hold that a message's metadata should not
ODD = [
    "NaN", "-Infinity", "1e999", "null", "true", '"1"', "[]", "{}", "9" * 400, "9" * 5000, "-0", "1E400",
    "[" * 100_000, '{"a":' * 100_000, "[" * 500 + "]" * 500, '"\\ud800"', '["n"]', '["w"]', '["a/b"]', "[[]]",
]  # fmt: skip
NAMES = ["self", "cls", "n", "w", "", "w/", "/", "\\ud800", "__class__", "parts", "x" * 10_000, "é"]
SHAPES = [[], [0], [2, 3], [0, 2**40], [1] * 60, [0, 2**62, 2**62], [2**63], [0, 2**64], [1] * 2_000]


def read_forged(rng: np.random.Generator) -> None:
    """A well-formed safetensors file whose names and metadata are chosen by somebody who means no good."""

    def one(values: list[str]) -> str:
        return values[rng.integers(len(values))]

    numbers = ", ".join(f'"{one(NAMES)}": {one(ODD) if rng.random() < 0.3 else 1}' for _ in range(rng.integers(3)))
    numbers = "{" + numbers + "}" if rng.random() < 0.8 else one(ODD)
    empty = json.dumps([one(NAMES) for _ in range(rng.integers(3))]) if rng.random() < 0.8 else one(ODD)
    metadata = f'{{"numbers": {numbers}, "empty": {empty}}}' if rng.random() < 0.9 else one(ODD)
    tensors = {one(NAMES): SHAPES[rng.integers(len(SHAPES))] for _ in range(rng.integers(4))}
    read(safetensors(tensors, ["F32", "F8_E5M2", "BOOL"][rng.integers(3)], metadata))


def safetensors(shapes: dict[str, list[int]], dtype: str, metadata: str) -> bytes:
    """By hand, since the library would not write some of these."""
    header: dict[str, object] = {"__metadata__": {"fedpac": metadata}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * (4 if dtype == "F32" else 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(range(256))[: min(end, 256)]


@budget(short=2_000, long=100_000)
def test_damaged_messages(cases):
    tally = fuzz(read_damaged, cases)
    assert tally.refused > cases / 2
    assert tally.accepted > cases / 100  # flipped bits of a weight are another message


@budget(short=2_000, long=100_000)
def test_forged_messages(cases):
    tally = fuzz(read_forged, cases)
    assert tally.refused > cases / 3
    assert tally.accepted > cases / 20
