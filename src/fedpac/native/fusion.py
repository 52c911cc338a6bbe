"""Networks whose blocks of convolution, pool and activation are one module, and back.

`accelerate` fuses a network in place; parameters and state-dict keys stay what they were. `plain` is its inverse.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from fedpac.native.ops import KERNELS, conv_pool_act


class FusedConvPool(nn.Conv2d):
    """A Conv2d followed by a 2x2 max-pool and a leaky ReLU (slope 0: ReLU), with the parameters of the Conv2d."""

    def __init__(self, *args: Any, negative_slope: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.negative_slope = negative_slope
        if not _fusible(self):
            raise ValueError(f"only a plain convolution with kernel size in {KERNELS} can be fused: {self}")

    @property
    def margin(self) -> int:
        """The padding on each side."""
        assert isinstance(self.padding[0], int)
        return self.padding[0]

    def forward(self, x: Tensor) -> Tensor:
        return conv_pool_act(x, self.weight, self.bias, self.margin, self.negative_slope)

    def extra_repr(self) -> str:
        plain: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{plain}, pool=2, negative_slope={self.negative_slope}"


def _fusible(conv: nn.Module) -> bool:
    return (
        isinstance(conv, nn.Conv2d)
        and conv.kernel_size in [(k, k) for k in KERNELS]
        and conv.padding in [(p, p) for p in conv.padding]
        and conv.stride == conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.padding_mode == "zeros"
    )


def _halves(pool: nn.Module) -> bool:
    return (
        type(pool) is nn.MaxPool2d
        and pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.ceil_mode
        and not pool.return_indices
    )


def _slope(activation: nn.Module) -> float | None:
    if type(activation) is nn.ReLU:
        return 0.0
    if type(activation) is nn.LeakyReLU and activation.negative_slope >= 0:
        return float(activation.negative_slope)
    return None


def hooked(module: nn.Module) -> bool:
    """Whether somebody watches what passes through the module."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def accelerate(module: nn.Module) -> nn.Module:
    """Fuses, in place, every Conv2d -> MaxPool2d(2) -> (Leaky)ReLU run of every nn.Sequential in `module`; returns it.

    The activation may also stand before the pool. The fused block takes the place of the convolution and keeps its
    parameters; nn.Identity fills the other two places, so state-dict keys and parameter objects stay what they were.
    Anything that does not match exactly is left alone.
    """
    for sequence in [m for m in module.modules() if isinstance(m, nn.Sequential)]:
        if type(sequence).forward is not nn.Sequential.forward:
            continue
        for i in range(len(sequence) - 2):
            conv, a, b = sequence[i], sequence[i + 1], sequence[i + 2]
            pool, activation = (a, b) if _halves(a) else (b, a)
            slope = _slope(activation)
            if type(conv) is not nn.Conv2d or not _fusible(conv) or not _halves(pool) or slope is None:
                continue
            if hooked(conv) or hooked(pool) or hooked(activation):
                continue  # somebody watches the parts
            sequence[i], sequence[i + 1], sequence[i + 2] = _fused(conv, slope), nn.Identity(), nn.Identity()
    return module


def _fused(conv: nn.Conv2d, negative_slope: float) -> FusedConvPool:
    fused = FusedConvPool.__new__(FusedConvPool)
    fused.__dict__ = conv.__dict__.copy()
    fused.negative_slope = negative_slope
    return fused


def plain(module: nn.Module) -> nn.Module:
    """A copy in torch's own layers: accelerate() backwards, for programs that do not have these kernels."""
    copied = copy.deepcopy(module)
    for sequence in [m for m in copied.modules() if isinstance(m, nn.Sequential)]:
        for i, fused in enumerate(sequence):
            if type(fused) is FusedConvPool:
                sequence[i] = _unfused(fused)
                sequence[i + 1] = nn.MaxPool2d(2)
                sequence[i + 2] = nn.LeakyReLU(fused.negative_slope) if fused.negative_slope else nn.ReLU()
    return copied


def _unfused(fused: FusedConvPool) -> nn.Conv2d:
    conv = nn.Conv2d.__new__(nn.Conv2d)
    conv.__dict__ = {name: value for name, value in fused.__dict__.items() if name != "negative_slope"}
    return conv
