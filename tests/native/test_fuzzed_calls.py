"""Native code called with all sorts of operands: it takes them or refuses them, and never reads or writes beyond them.

Every call is made in a process of its own, and every operand ends where a page begins that nobody may touch.
"""

import ctypes
import faulthandler
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpac.collaboration.simplex_qp import solve_simplex_qps
from fedpac.errors import FedpacError
from fedpac.native import FusedConvPool, available, conv_pool_act, ops, vectors
from fuzzing import budget, fuzz

pytestmark = pytest.mark.skipif(not available(), reason="no native library on this machine")

Rng = np.random.Generator
DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]
EXTREME = [-(2**63), -(2**31), -3, -1, 0, 1, 2, 7, 2**20, 2**31, 2**40, 2**62]


# ---------------------------------------------------------------- operands


def guarded(count: int, dtype: torch.dtype, rng: Rng) -> Tensor:
    """So many random numbers, right before a page that cannot be read."""
    element = torch.empty((), dtype=dtype).element_size()
    size, page = max(count, 1) * element, mmap.PAGESIZE
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address + pages * page), page, 0) == 0
    tensor = torch.frombuffer(memory, dtype=dtype, count=max(count, 1), offset=pages * page - size)
    tensor.copy_(torch.from_numpy(rng.normal(size=max(count, 1)) * 3))
    return tensor[:count]


def operand(shape: Sequence[int], dtype: torch.dtype, rng: Rng) -> Tensor:
    """A tensor of this shape, most often contiguous, sometimes in another layout."""
    shape = [max(0, s) for s in shape]
    order = list(rng.permutation(len(shape))) if rng.random() < 0.3 else list(range(len(shape)))
    steps, stride = [0] * len(shape), int(rng.integers(1, 3)) if rng.random() < 0.2 else 1
    for axis in reversed(order):
        steps[axis] = 0 if shape[axis] > 1 and rng.random() < 0.03 else stride  # the same numbers over and over
        stride *= max(1, shape[axis]) if steps[axis] else 1
    extent = 1 + sum((s - 1) * step for s, step in zip(shape, steps, strict=True)) if all(shape) else 0
    return guarded(extent, dtype, rng).as_strided(shape, steps)


def pick(rng: Rng, choices: Sequence[object]) -> object:
    return choices[int(rng.integers(len(choices)))]


class Wrong:
    """Spoils one shape or type now and then."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.dtype = torch.float32 if rng.random() < 0.6 else torch.float64

    def tensor(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        rng, sizes = self.rng, list(shape)
        dtype = self.dtype if dtype is None else dtype
        match int(rng.integers(25)):
            case 0 if sizes:
                sizes[rng.integers(len(sizes))] += int(rng.integers(-2, 3))
            case 1:
                sizes.insert(0, int(rng.integers(3)))
            case 2 if sizes:
                sizes.pop()
            case 3:
                dtype = DTYPES[rng.integers(len(DTYPES))]
            case 4 if sizes:
                sizes[rng.integers(len(sizes))] = 0
            case 5:
                return torch.empty(sizes, dtype=dtype, device="meta")
            case 6 if len(sizes) == 2:
                return torch.zeros(sizes, dtype=dtype).to_sparse()
        return operand(sizes, dtype, rng)

    def number(self, right: int) -> int:
        return right if self.rng.random() < 0.85 else EXTREME[self.rng.integers(len(EXTREME))]


# ---------------------------------------------------------------- calls


class Geometry(Wrong):
    def __init__(self, rng: Rng) -> None:
        super().__init__(rng)
        self.n, self.inputs, self.outputs = (int(rng.integers(1, high)) for high in (5, 20, 40))
        self.kernel = int(rng.choice([3, 5])) if rng.random() < 0.9 else int(rng.integers(1, 9))
        self.height, self.width = (int(rng.integers(3, 15)) for _ in range(2))
        self.padding = self.number(int(rng.integers(3)))
        shrink = 2 * self.padding - self.kernel + 1
        self.pooled = [max(0, min(50, (side + shrink) // 2)) for side in (self.height, self.width)]
        self.slope = float(rng.choice([0.0, 0.01, 0.3, np.nan, -1.0, np.inf], p=[0.3, 0.3, 0.3, 0.04, 0.03, 0.03]))

    def x(self) -> Tensor:
        return self.tensor(self.n, self.inputs, self.height, self.width)

    def weight(self) -> Tensor:
        return self.tensor(self.outputs, self.inputs, self.kernel, self.kernel)

    def bias(self) -> Tensor | None:
        return None if self.rng.random() < 0.2 else self.tensor(self.outputs)


def public(rng: Rng) -> None:
    g = Geometry(rng)
    x, weight, bias = g.x(), g.weight(), g.bias()
    call = conv_pool_act if rng.random() < 0.5 else torch.ops.fedpac.conv_pool_act
    y = call(x, weight, bias, g.padding, g.slope)
    if x.dtype == torch.float64 and ops._fit(x, weight, bias, g.padding) and g.slope != np.inf:
        expected = F.max_pool2d(F.conv2d(x, weight, bias, padding=g.padding), 2)
        torch.testing.assert_close(y, F.leaky_relu(expected, g.slope) if g.slope else F.relu(expected))


def forward(rng: Rng) -> None:
    g = Geometry(rng)
    torch.ops.fedpac.conv_pool_act_forward(g.x(), g.weight(), g.bias(), g.padding, g.slope)


def backward(rng: Rng) -> None:
    g = Geometry(rng)
    grad, code = g.tensor(g.n, g.outputs, *g.pooled), g.tensor(g.n, *g.pooled, g.outputs, dtype=torch.uint8)
    needed = (rng.random(3) < 0.7).tolist()
    torch.ops.fedpac.conv_pool_act_backward(grad, g.x(), g.weight(), code, g.padding, g.slope, needed)


def prepared(rng: Rng) -> None:
    g = Geometry(rng)
    block: Any = FusedConvPool(g.inputs, g.outputs, g.kernel, padding=g.padding, negative_slope=g.slope).to(g.dtype)
    fused = ops.Prepared(block)
    for _ in range(2):
        fused.forward(g.x())
    dw, db = (None if rng.random() < 0.2 else g.tensor(*p.shape) for p in (block.weight, block.bias))
    fused.backward(g.tensor(g.n, g.outputs, *g.pooled), bool(rng.random() < 0.5), dw, db)


def step(rng: Rng) -> None:
    w, n = Wrong(rng), int(rng.integers(1, 200))
    vectors.sgd_step(w.tensor(n), w.tensor(n), None if rng.random() < 0.3 else w.tensor(n), 0.1, 0.5, 0.01)


def weighted_sum(rng: Rng) -> None:
    w, count, size = Wrong(rng), int(rng.integers(5)), int(rng.integers(1, 4000))
    shares = rng.normal(size=max(0, count + (int(rng.integers(-2, 3)) if rng.random() < 0.3 else 0))).tolist()
    vectors.weighted_sum([w.tensor(size) for _ in range(count)], shares)


def move(rng: Rng) -> None:
    w, n = Wrong(rng), int(rng.integers(1, 6))
    images, channels, height, width = (int(rng.integers(1, 8)) for _ in range(4))

    def whole(low: int, high: int) -> Tensor:
        values = [w.number(int(rng.integers(low, high))) for _ in range(n)]
        place = w.tensor(n, dtype=torch.int64)
        return place.copy_(torch.tensor(values)) if place.shape == (n,) and not place.is_meta else place

    where = whole(0, images), whole(-9, 10), whole(-9, 10), whole(0, 2)
    vectors.move(w.tensor(images, channels, height, width), *where, w.tensor(channels))


def head_gradient(rng: Rng) -> None:
    w = Wrong(rng)
    rows, features, classes = (int(rng.integers(1, 40)) for _ in range(3))
    labels = w.tensor(rows, dtype=torch.int64)
    if labels.shape == (rows,) and not labels.is_meta:
        labels.copy_(torch.tensor([w.number(int(rng.integers(classes))) if rng.random() < 0.1 else 0 for _ in labels]))
    shapes = [(classes,), (rows, features), (classes, features), (classes,)]
    rest = [None if rng.random() < 0.2 else w.tensor(*shape) for shape in shapes]
    vectors.head_gradient(w.tensor(rows, features), labels, w.tensor(classes, features), *rest)


def programmes(rng: Rng) -> None:
    m, count = int(rng.integers(1, 30)), int(rng.integers(1, 6))
    half = rng.normal(size=(m, m)) * 10.0 ** rng.integers(-200, 160)
    C = rng.normal(size=(count, m + (rng.random() < 0.1))) * 10.0 ** rng.integers(-200, 200)
    with np.errstate(all="ignore"):
        solve_simplex_qps(half @ half.T if rng.random() < 0.7 else half, C)


CALLS: dict[str, Callable[[Rng], None]] = {
    f.__name__: f
    for f in (public, forward, backward, prepared, step, weighted_sum, move, head_gradient, programmes)
}  # fmt: skip


def one_call(rng: Rng) -> None:
    """A random call in a process of its own; one that is refused with a Python exception is a FedpacError here."""
    name = list(CALLS)[rng.integers(len(CALLS))]
    child = os.fork()
    if child == 0:
        code = 3
        try:
            CALLS[name](rng)
            code = 0
        except AssertionError:
            code = 2
        except Exception:
            code = 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise RuntimeError(f"{name} was ended by signal {os.WTERMSIG(status)}")
    if os.WEXITSTATUS(status) > 1:
        raise RuntimeError(f"{name} gave something else than torch, or did not end as a program does")
    if os.WEXITSTATUS(status) == 1:
        raise FedpacError(f"{name} refused its operands")


@budget(short=150, long=1200)
def test_no_call_reads_or_writes_beyond_its_operands(cases: int) -> None:
    tally = fuzz(one_call, cases)
    assert cases / 10 < tally.refused < cases * 9 / 10  # both what is right and what is wrong is tried


def test_what_is_beyond_an_operand_cannot_be_read() -> None:
    """The fuzzer would see it."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # this crash is no news
        x = guarded(100, torch.float32, np.random.default_rng(0))
        ctypes.string_at(x.data_ptr() + 400, 4)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


X, WEIGHT, BIAS = torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3), torch.ones(4)
CODE, GRAD = torch.zeros(2, 3, 3, 4, dtype=torch.uint8), torch.ones(2, 4, 3, 3)
FORWARD, BACKWARD = ops._forward_operator, ops._backward_operator


@pytest.mark.parametrize(
    ("call", "operands"),
    [
        (conv_pool_act, (X, WEIGHT, torch.ones(1), 0, 0.1)),
        (torch.ops.fedpac.conv_pool_act, (X, WEIGHT, torch.ones(400), 0, 0.1)),
        (FORWARD, (X, WEIGHT, torch.ones(1), 0, 0.1)),
        (FORWARD, (X, WEIGHT, BIAS, -1, 0.1)),
        (FORWARD, (X, WEIGHT.double(), BIAS, 0, 0.1)),
        (FORWARD, (X, torch.ones(4, 3, 4, 4), BIAS, 0, 0.1)),
        (FORWARD, (X, torch.ones(4, 5, 3, 3), BIAS, 0, 0.1)),
        (FORWARD, (X[0], WEIGHT, BIAS, 0, 0.1)),
        (BACKWARD, (GRAD[:1], X, WEIGHT, CODE, 0, 0.1, [True] * 3)),
        (BACKWARD, (GRAD, X, WEIGHT, CODE[:1], 0, 0.1, [True] * 3)),
        (BACKWARD, (GRAD, X, WEIGHT, CODE.mT, 0, 0.1, [True] * 3)),
        (BACKWARD, (GRAD.double(), X, WEIGHT, CODE, 0, 0.1, [True] * 3)),
        (BACKWARD, (GRAD, X, WEIGHT, CODE, 7, 0.1, [True] * 3)),
        (vectors.weighted_sum, ([X, X], [0.5])),
    ],
)
def test_operands_that_do_not_fit_are_refused(call: Callable[..., object], operands: Sequence[object]) -> None:
    with pytest.raises((ValueError, RuntimeError), match=r"expected|takes float32 or float64"):
        call(*operands)


def test_images_moved_farther_than_numbers_go_are_out_of_sight() -> None:
    for far in (-(2**63), 2**63 - 1):
        for down, right in ((far, 0), (0, far)):
            at = {value: torch.tensor([value]) for value in (0, down, right)}
            moved = vectors.move(torch.ones(1, 1, 3, 3), at[0], at[down], at[right], at[0], torch.zeros(1))
            assert moved is not None
            assert not moved.any()
