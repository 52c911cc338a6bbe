"""What is done to all weights or to all pixels at once: in one pass of native code, or by torch where there is none."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedpac.native.build import library

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_POINTER, _INTEGER, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_ARGUMENTS: dict[str, list[Any]] = {
    "sgd": [_INTEGER] + [_POINTER] * 3 + [_NUMBER] * 3,
    "move": [_INTEGER] * 5 + [_POINTER] * 7,
    "head_gradient": [_INTEGER] * 3 + [_POINTER] * 8,
    "weighted_sum": [_INTEGER] * 2 + [_POINTER] * 3,
}


@functools.cache
def _entry(name: str, dtype: torch.dtype | None = None) -> Callable[..., int]:
    native = library()
    assert native is not None
    function = native[f"fedpac_{name}" if dtype is None else f"fedpac_{name}_{_SUFFIX[dtype]}"]
    function.argtypes = _ARGUMENTS[name]
    return function


def _usable(*tensors: Tensor | None) -> bool:
    """Whether native code can run over these: plain memory, and a library to do it."""
    return library() is not None and all(
        t is None or (t.dtype in _SUFFIX and t.device.type == "cpu" and t.is_contiguous()) for t in tensors
    )


def sgd_step(
    parameters: Tensor, gradient: Tensor, velocity: Tensor | None, lr: float, momentum: float, weight_decay: float
) -> None:
    """v <- momentum v + gradient + weight_decay parameters; parameters <- parameters - lr v, all in place.

    Without momentum no velocity is needed. The gradient may or may not have been changed afterwards.
    """
    vectors = [v for v in (parameters, gradient, velocity) if v is not None]
    alike = all(v.dtype == parameters.dtype and v.shape == parameters.shape for v in vectors)
    if alike and _usable(*vectors):
        pointers = (parameters.data_ptr(), gradient.data_ptr(), None if velocity is None else velocity.data_ptr())
        _entry("sgd", parameters.dtype)(parameters.numel(), *pointers, lr, momentum, weight_decay)
        return
    if weight_decay:
        gradient.add_(parameters, alpha=weight_decay)
    if velocity is not None:
        gradient = velocity.mul_(momentum).add_(gradient)
    parameters.sub_(gradient, alpha=lr)


def weighted_sum(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """sum_k share_k x_k, summed in this order in double precision; of the first one's type."""
    if not len(tensors) == len(shares) > 0:
        raise ValueError(f"{len(tensors)} tensors and {len(shares)} shares; expected one share for each tensor")
    first = tensors[0]
    alike = all(t.dtype == torch.float32 and t.shape == first.shape for t in tensors)
    if alike and _usable(*tensors):
        out = torch.empty_like(first)
        pointers = (_POINTER * len(tensors))(*(t.data_ptr() for t in tensors))
        numbers = (_NUMBER * len(shares))(*shares)
        _entry("weighted_sum")(len(tensors), first.numel(), pointers, numbers, out.data_ptr())
        return out
    total = torch.zeros_like(first, dtype=torch.float64)
    for tensor, share in zip(tensors, shares, strict=True):
        total.add_(tensor, alpha=share)
    return total.to(first.dtype)


def move(x: Tensor, index: Tensor, down: Tensor, right: Tensor, mirrored: Tensor, fill: Tensor) -> Tensor | None:
    """Images x[index] (n, channels, height, width), each moved by so many pixels, then mirrored if `mirrored` is not 0.

    fill: one value for each channel, for what comes into view. None where there is no native code for such operands.
    """
    fill = fill.to(x)
    if x.dim() != 4 or not _usable(x, fill) or fill.shape != x.shape[1:2]:
        return None
    places = [t.to(torch.int64).contiguous() for t in (index, down, right, mirrored)]
    if any(t.shape != index.shape or t.device.type != "cpu" for t in places):
        return None
    out = x.new_empty((len(index), *x.shape[1:]))
    pointers = x.data_ptr(), *(t.data_ptr() for t in places), fill.data_ptr(), out.data_ptr()
    if _entry("move", x.dtype)(len(x), *out.shape, *pointers):
        raise IndexError("an index is not among the images")
    return out


def head_gradient(
    z: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dz: Tensor | None,
    dw: Tensor | None,
    db: Tensor | None,
) -> None:
    """The gradient of the mean cross-entropy of logits weight z + bias, into what is given of dz, dw and db.

    For native code alone: what it cannot take is an error.
    """
    operands = (z, weight, bias, dz, dw, db)
    if not _usable(*operands) or any(t is not None and t.dtype != z.dtype for t in operands):
        raise TypeError("native code needs plain tensors of one type")
    if labels.dtype != torch.int64 or labels.device.type != "cpu" or not labels.is_contiguous():
        raise TypeError("native code needs labels of 64 bits side by side")
    (rows, features), classes = z.shape, len(weight)
    shapes = ((rows, features), (classes, features), (classes,), (rows, features), (classes, features), (classes,))
    if labels.shape != (rows,) or any(t is not None and t.shape != s for t, s in zip(operands, shapes, strict=True)):
        raise ValueError("as many labels as rows, and gradients as large as what they belong to")
    logits = z.new_empty(classes)
    pointers = (None if t is None else t.data_ptr() for t in (z, weight, bias, labels, logits, dz, dw, db))
    if _entry("head_gradient", z.dtype)(rows, features, classes, *pointers):
        raise IndexError("a label is not among the classes")
