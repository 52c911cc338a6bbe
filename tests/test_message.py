"""Messages turn into bytes and back exactly; bytes from elsewhere are refused, never executed."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.torch import save

from fedpac.errors import MessageError
from fedpac.message import Message

NAMES = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="/"), max_size=8), st.sampled_from(["self", "cls", "parts"])
)
TENSORS = arrays("float32", array_shapes(max_dims=3, max_side=3)).map(torch.from_numpy)
PARTS = st.one_of(st.floats(allow_nan=False), TENSORS, st.dictionaries(NAMES, TENSORS, max_size=3))


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(NAMES, PARTS, max_size=4))
def test_bytes_and_back(parts):
    message = Message(**parts)
    again = Message.from_bytes(message.to_bytes())
    assert again == message
    assert again.to_bytes() == message.to_bytes()
    assert again.nbytes == message.nbytes


def test_what_is_counted():
    message = Message(
        w={"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.float64)}, n=4, mask=torch.zeros(5) > 0
    )
    assert message.nbytes == 3 * 4 + 4 * 8 + 8 + 5


def test_order_does_not_change_the_bytes():
    a, b = torch.ones(2), torch.zeros(3)
    assert Message(a=a, n=1, b=b).to_bytes() == Message(b=b, a=a, n=1).to_bytes()


def test_shared_memory_does_not_travel():
    base = torch.arange(4.0)
    again = Message.from_bytes(Message(a=base, b=base[1:]).to_bytes())
    again.tensor("a").zero_()
    assert again.tensor("b").tolist() == [1, 2, 3]


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 20, -1])
def test_cut_bytes_are_refused(cut):
    data = Message(w={"a": torch.ones(3)}, n=1).to_bytes()
    with pytest.raises(MessageError, match="not a fedpac message"):
        Message.from_bytes(data[:cut])


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=64))
def test_noise_is_refused(data):
    with pytest.raises(MessageError):
        Message.from_bytes(data)


def test_a_file_of_somebody_else_is_refused():
    with pytest.raises(MessageError, match="not a fedpac message"):
        Message.from_bytes(save({"a": torch.ones(2)}))


def test_a_missing_part_is_named():
    with pytest.raises(MessageError, match="no part 'head'; it has: n, w"):
        Message(w=torch.ones(1), n=1)["head"]


def test_a_part_of_another_kind_is_named():
    with pytest.raises(MessageError, match="'w' is a Tensor, not a set of weights"):
        Message(w=torch.ones(1)).weights("w")


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ('{"n": NaN}', "'n' is NaN"),
        ('{"n": %s}' % ("9" * 400), "'n' is a number too large"),
        ('{"n": %s}' % ("9" * 5000), "not a fedpac message"),
        ('{"n": "1"}', "'n' is a str"),
        ('{"w": 1}', "'w' occurs twice"),
        ('["n"]', "not a fedpac message"),
        ("[" * 100_000, "not a fedpac message"),
    ],
    ids=lambda value: value[:12],
)
def test_forged_numbers_are_refused(numbers, message):
    data = save({"w": torch.ones(2)}, {"fedpac": f'{{"numbers": {numbers}, "empty": []}}'})
    with pytest.raises(MessageError, match=message):
        Message.from_bytes(data)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (math.nan, "'a' is NaN"),
        (10**400, "too large"),
        ({"w": 1.0}, "has 'w', a float; a set of weights holds tensors"),
        (None, "'a' is a NoneType"),
    ],
    ids=["nan", "large", "number in weights", "none"],
)
def test_a_part_that_cannot_travel_is_named(part, message):
    with pytest.raises(MessageError, match=message):
        Message(a=part)


def test_a_name_with_the_separator_is_refused():
    with pytest.raises(MessageError, match="must not contain"):
        Message(**{"a/b": 1.0})
