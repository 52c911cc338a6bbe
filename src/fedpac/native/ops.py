"""The fused convolution block as a torch operator.

`fedpac::conv_pool_act` is conv2d + bias + 2x2 max-pool + leaky ReLU. Since leaky ReLU with a slope >= 0 is monotone, it
commutes with the pool, so the operator stands for both usual orders of the two.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedpac.native.build import library

if TYPE_CHECKING:
    from fedpac.native.fusion import FusedConvPool

KERNELS = (3, 5)
MOST_PIXELS, MOST_CHANNELS = 2**31, 2**20  # kernels keep places within an image and within weights in 32 bits
_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


def conv_pool_act(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, negative_slope: float) -> Tensor:
    """leaky_relu(max_pool2d(conv2d(x, weight, bias, padding=padding), 2), negative_slope); slope 0 is ReLU.

    The native kernel returns channels-last memory and takes any strides; what it does not support goes to torch.
    """
    if not negative_slope >= 0:
        raise ValueError(f"negative_slope must be >= 0 for the activation to commute with the pool: {negative_slope}")
    if _supported(x, weight, bias, padding):
        return _differentiable(x, weight, bias, padding, negative_slope)
    return _composed(x, weight, bias, padding, negative_slope)


def _composed(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, negative_slope: float) -> Tensor:
    # the pool goes first: it leaves a quarter of the values to activate
    pooled = F.max_pool2d(F.conv2d(_channels_last(x), weight, bias, padding=padding), 2)
    return F.leaky_relu(pooled, negative_slope) if negative_slope else F.relu(pooled)


def _channels_last(x: Tensor) -> Tensor:
    """On a CPU torch's kernels for this layout are up to three times as fast, the max-pool above all."""
    if x.dim() != 4 or x.device.type != "cpu" or _transformed():
        return x
    if x.shape[1] == 1:  # both layouts at once; torch goes by the strides, and a view has those that it looks for
        batch, _, height, width = x.shape
        return x.reshape(batch, height, width, 1).permute(0, 3, 1, 2)
    return x.contiguous(memory_format=torch.channels_last)


def _transformed() -> bool:
    # within torch.func's transforms only torch's own operators can be used, and no other layouts
    return torch._C._are_functorch_transforms_active()


def _supported(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> bool:
    return _fit(x, weight, bias, padding) and not _transformed() and library() is not None


def _fit(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> bool:
    """Whether the kernels may be given the memory of these operands; they check nothing themselves."""
    if not (
        x.dtype in _SUFFIX
        and _plain(x, x.dtype)
        and _plain(weight, x.dtype)
        and x.dim() == weight.dim() == 4
        and 0 < x.shape[1] == weight.shape[1]
        and weight.shape[2] == weight.shape[3]
        and weight.shape[2] in KERNELS
        and 0 < weight.shape[0] < MOST_CHANNELS
        and (bias is None or (_plain(bias, x.dtype) and bias.shape == weight.shape[:1]))
        and padding >= 0
    ):
        return False
    height, width = _pooled(x, weight, padding)
    padded = x.shape[1] * (x.shape[2] + 2 * padding) * (x.shape[3] + 2 * padding)
    return height > 0 and width > 0 and padded < MOST_PIXELS


def _plain(x: Tensor, dtype: torch.dtype) -> bool:
    return x.dtype == dtype and x.device.type == "cpu" and x.layout is torch.strided


def _refuse(operator: str, *operands: Tensor | None, padding: int) -> NoReturn:
    given = ", ".join("none" if t is None else f"{t.dtype} {tuple(t.shape)}" for t in operands)
    raise ValueError(
        f"fedpac::{operator} takes float32 or float64 on the CPU, all alike: x (n, c, h, w), weight (o, c, k, k) with "
        f"k of 3 or 5, bias (o), a gradient and codes as the forward pass gives them, and padding >= 0; got {given} "
        f"and padding {padding}"
    )


def _pooled(x: Tensor, weight: Tensor, padding: int) -> tuple[int, int]:
    shrink = 2 * padding - weight.shape[2] + 1
    return (x.shape[2] + shrink) // 2, (x.shape[3] + shrink) // 2


def instruction_set() -> str:
    """The name of the vector instructions that the kernels use on this processor."""
    native = library()
    assert native is not None
    native.fedpac_instruction_set.restype = ctypes.c_char_p
    name: bytes = native.fedpac_instruction_set()
    return name.decode()


@functools.cache
def _entry(name: str, dtype: torch.dtype) -> Callable[..., int]:
    native = library()
    assert native is not None
    function = native[f"fedpac_conv_pool_{name}_{_SUFFIX[dtype]}_{instruction_set()}"]
    pointer = ctypes.c_void_p
    function.argtypes = {
        "forward": [pointer] * 5 + [ctypes.c_double] + [pointer] * 2,
        "backward": [pointer] * 7 + [ctypes.c_double] + [pointer] * 3,
    }[name]
    return function


def _call(name: str, dtype: torch.dtype, *arguments: Any) -> None:
    if _entry(name, dtype)(*arguments) != 0:
        raise MemoryError("no memory for the native convolution")


_Shape, _Strides = ctypes.c_int64 * 7, ctypes.c_int64 * 4


def _shape(x: Tensor, weight: Tensor, padding: int) -> ctypes.Array[ctypes.c_int64]:
    return _Shape(*x.shape, weight.shape[0], weight.shape[2], padding)


def _strides(x: Tensor) -> ctypes.Array[ctypes.c_int64]:
    return _Strides(*x.stride())


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _empty_outputs(x: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    height, width = _pooled(x, weight, padding)
    y = x.new_empty((x.shape[0], height, width, weight.shape[0]))
    return y.permute(0, 3, 1, 2), torch.empty_like(y, dtype=torch.uint8)


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, negative_slope: float
) -> tuple[Tensor, Tensor]:
    if not _fit(x, weight, bias, padding):
        _refuse("conv_pool_act_forward", x, weight, bias, padding=padding)
    y, code = _empty_outputs(x, weight, padding)
    weight = weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    _call(
        "forward", x.dtype, _shape(x, weight, padding), x.data_ptr(), _strides(x), weight.data_ptr(), _pointer(bias),
        negative_slope, y.data_ptr(), code.data_ptr(),
    )  # fmt: skip
    return y, code


def _empty_input_gradient(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    return x.new_empty((batch, height, width, channels)).permute(0, 3, 1, 2)


def _empty_gradients(x: Tensor, weight: Tensor, needed: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    dx = _empty_input_gradient(x if needed[0] else x.new_empty((0, 0, 0, 0)))
    return dx, weight.new_empty(weight.shape if needed[1] else 0), weight.new_empty(weight.shape[0] if needed[2] else 0)


def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, code: Tensor, padding: int, negative_slope: float, needed: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    if not (_fit(x, weight, None, padding) and _fits_backward(grad, x, weight, code, padding)):
        _refuse("conv_pool_act_backward", grad, x, weight, code, padding=padding)
    gradients = _empty_gradients(x, weight, needed)
    weight = weight.contiguous()
    _call(
        "backward", x.dtype, _shape(x, weight, padding), x.data_ptr(), _strides(x), weight.data_ptr(), grad.data_ptr(),
        _strides(grad), code.data_ptr(), negative_slope,
        *(g.data_ptr() if n else None for g, n in zip(gradients, needed, strict=True)),
    )  # fmt: skip
    return gradients


def _fits_backward(grad: Tensor, x: Tensor, weight: Tensor, code: Tensor, padding: int) -> bool:
    """Whether the forward pass of x could have given such codes, and its result such a gradient."""
    batch, channels, (height, width) = x.shape[0], weight.shape[0], _pooled(x, weight, padding)
    return (
        _plain(grad, x.dtype)
        and grad.shape == (batch, channels, height, width)
        and _plain(code, torch.uint8)
        and code.shape == (batch, height, width, channels)
        and code.is_contiguous()
    )


class Prepared:
    """A fused block without autograd: checks, memory and arguments are made once for inputs of one layout.

    Each forward() overwrites the result of the one before, and so does backward().
    """

    def __init__(self, block: FusedConvPool) -> None:
        self.block = block
        self.layout: tuple[Any, ...] | None = None

    def prepare(self, x: Tensor) -> None:
        block, weight, bias = self.block, self.block.weight, self.block.bias
        operands = (x, weight, bias, block.margin)
        if not _supported(*operands) or not weight.is_contiguous() or not (bias is None or bias.is_contiguous()):
            _composed(*operands, block.negative_slope)  # torch knows best what is wrong with the operands
            raise TypeError(f"the native convolution does not take {x.dtype} on {x.device}")
        self.y, self.code = _empty_outputs(x, weight, block.margin)
        self.dx: Tensor | None = None
        self.shape, self.strides = _shape(x, weight, block.margin), _strides(x)
        self.layout = x.shape, x.stride(), x.dtype, x.is_cpu

    def forward(self, x: Tensor) -> Tensor:
        if (x.shape, x.stride(), x.dtype, x.is_cpu) != self.layout:
            self.prepare(x)
        self.x, block = x, self.block
        _call(
            "forward", x.dtype, self.shape, x.data_ptr(), self.strides, block.weight.data_ptr(), _pointer(block.bias),
            block.negative_slope, self.y.data_ptr(), self.code.data_ptr(),
        )  # fmt: skip
        return self.y

    def backward(self, grad: Tensor, inputs: bool, dw: Tensor | None, db: Tensor | None) -> Tensor | None:
        """Fills dw and db, which must be contiguous, if they are given; returns dx if it is wanted."""
        x, block = self.x, self.block
        wanted = ((grad, self.y), (dw, block.weight), (db, block.bias))
        if any(g is not None and (p is None or g.shape != p.shape or not _plain(g, p.dtype)) for g, p in wanted):
            raise ValueError("gradients must be as large as what they belong to, and of its type")
        if not all(g is None or g.is_contiguous() for g in (dw, db)):
            raise ValueError("gradients of weights must be contiguous")
        if inputs and self.dx is None:
            self.dx = _empty_input_gradient(x)
        dx = self.dx if inputs else None
        _call(
            "backward", x.dtype, self.shape, x.data_ptr(), self.strides, block.weight.data_ptr(), grad.data_ptr(),
            _strides(grad), self.code.data_ptr(), block.negative_slope, _pointer(dx), _pointer(dw), _pointer(db),
        )  # fmt: skip
        return dx


_operators: Any = torch.library.Library("fedpac", "FRAGMENT")  # type: ignore[no-untyped-call]
_arguments = "Tensor x, Tensor weight, Tensor? bias, int padding, float negative_slope"
_operators.define(f"conv_pool_act({_arguments}) -> Tensor")
_operators.define(f"conv_pool_act_forward({_arguments}) -> (Tensor, Tensor)")
_operators.define(
    "conv_pool_act_backward(Tensor grad, Tensor x, Tensor weight, Tensor code, int padding, float negative_slope, "
    "bool[3] needed) -> (Tensor, Tensor, Tensor)"
)
_operators.impl("conv_pool_act", conv_pool_act, "CompositeImplicitAutograd")
_operators.impl("conv_pool_act_forward", _forward, "CPU")
_operators.impl("conv_pool_act_backward", _backward, "CPU")
_forward_operator = torch.ops.fedpac.conv_pool_act_forward.default
_backward_operator = torch.ops.fedpac.conv_pool_act_backward.default


torch.library.register_fake(
    "fedpac::conv_pool_act_forward",
    lambda x, weight, bias, padding, slope: _empty_outputs(x, weight, padding),
    lib=_operators,
)
torch.library.register_fake(
    "fedpac::conv_pool_act_backward",
    lambda grad, x, weight, code, padding, slope, needed: _empty_gradients(x, weight, needed),
    lib=_operators,
)


class _ConvPoolAct(torch.autograd.Function):
    """The derivative, as an autograd.Function: torch.library.register_autograd costs twice as much per call."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, negative_slope: float
    ) -> Tensor:
        y, code = _forward_operator(x, weight, bias, padding, negative_slope)
        ctx.save_for_backward(x, weight, code)
        ctx.padding, ctx.negative_slope = padding, negative_slope
        return cast(Tensor, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, code = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        gradients = _backward_operator(grad, x, weight, code, ctx.padding, ctx.negative_slope, needed)
        return *(g if n else None for g, n in zip(gradients, needed, strict=True)), None, None


_differentiable = cast(Callable[..., Tensor], _ConvPoolAct.apply)
