"""Gradients of plain networks, written out: no graph to build, and every gradient goes straight to its place.

`gradient_of` knows a `Classifier` whose body and head are sequences of the layers below, and cross-entropy with or
without alignment. To all else it says None, and autograd does the work. The numbers are autograd's up to rounding; the
random numbers of dropout are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpac import native
from fedpac.models import Classifier
from fedpac.native.vectors import head_gradient
from fedpac.timing import span

if TYPE_CHECKING:
    from fedpac.native.fusion import FusedConvPool

forward, backward = span("forward"), span("backward")

SMALL_BATCH, LARGE_LAYER = range(8, 33), 2**18  # where torch's product is faster the other way round

# (images, labels): fills the .grad of the parameters that require one, which must exist
Gradient: TypeAlias = Callable[[Tensor, Tensor], None]


class Layer(Protocol):
    """One layer; it remembers from forward() what its backward() needs."""

    trained: bool  # whether it has parameters that require a gradient

    def forward(self, x: Tensor) -> Tensor: ...

    def backward(self, grad: Tensor, inputs: bool) -> Tensor | None:
        """Fills the gradients of the parameters; returns that of the input if it is wanted."""


class Convolution:
    def __init__(self, module: FusedConvPool) -> None:
        from fedpac.native.ops import Prepared

        self.module, self.trained = module, module.weight.requires_grad
        self.prepared = Prepared(module)

    def forward(self, x: Tensor) -> Tensor:
        return self.prepared.forward(x)

    def backward(self, grad: Tensor, inputs: bool) -> Tensor | None:
        m = self.module
        dw, db = (None if p is None or not self.trained else p.grad for p in (m.weight, m.bias))
        return self.prepared.backward(grad, inputs, dw, db)


class PlainConvolution:
    """Without a pool there is nothing to gain over torch's own kernels."""

    def __init__(self, module: nn.Conv2d) -> None:
        self.module, self.trained = module, module.weight.requires_grad

    def forward(self, x: Tensor) -> Tensor:
        m = self.module
        self.x = x.contiguous(memory_format=torch.channels_last)
        return F.conv2d(self.x, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)

    def backward(self, grad: Tensor, inputs: bool) -> Tensor | None:
        m = self.module
        biases = None if m.bias is None else list(m.bias.shape)
        wanted = [inputs, self.trained, self.trained and m.bias is not None]
        dx, dw, db = torch.ops.aten.convolution_backward(
            grad, self.x, m.weight, biases, m.stride, m.padding, m.dilation, False, [0, 0], m.groups, wanted
        )
        for p, found in ((m.weight, dw), (m.bias, db)):
            if found is not None and p is not None and p.grad is not None:
                p.grad.copy_(found)
        return dx if inputs else None


class Linear:
    def __init__(self, module: nn.Linear) -> None:
        self.module, self.trained = module, module.weight.requires_grad

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        weight, bias = self.module.weight, self.module.bias
        if x.dim() != 2 or len(x) not in SMALL_BATCH or weight.numel() < LARGE_LAYER:
            return F.linear(x, weight, bias)
        y = weight.mm(x.t()).t().contiguous()
        return y if bias is None else y.add_(bias)

    def backward(self, grad: Tensor, inputs: bool) -> Tensor | None:
        m = self.module
        if self.trained:
            rows = grad.flatten(0, -2)
            torch.mm(rows.t(), self.x.flatten(0, -2), out=m.weight.grad)
            if m.bias is not None:
                torch.sum(rows, 0, out=m.bias.grad)
        return grad.matmul(m.weight) if inputs else None


class Activation:
    trained = False

    def __init__(self, module: nn.ReLU | nn.LeakyReLU) -> None:
        self.slope = module.negative_slope if isinstance(module, nn.LeakyReLU) else None

    def forward(self, x: Tensor) -> Tensor:
        self.y = F.relu(x) if self.slope is None else F.leaky_relu(x, self.slope)
        return self.y

    def backward(self, grad: Tensor, inputs: bool) -> Tensor | None:
        if self.slope is None:
            return cast(Tensor, torch.ops.aten.threshold_backward(grad, self.y, 0))
        # by the result, which for a slope >= 0 has the sign of the input
        return cast(Tensor, torch.ops.aten.leaky_relu_backward(grad, self.y, self.slope, True))


class Flatten:
    trained = False

    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        return x.flatten(1)

    def backward(self, grad: Tensor, inputs: bool) -> Tensor | None:
        return grad.view(self.shape)


class Dropout:
    trained = False

    def __init__(self, module: nn.Dropout) -> None:
        self.keep = 1 - module.p

    def forward(self, x: Tensor) -> Tensor:
        self.noise = torch.empty_like(x).bernoulli_(self.keep).div_(self.keep)  # as torch draws it
        return x * self.noise

    def backward(self, grad: Tensor, inputs: bool) -> Tensor | None:
        return grad * self.noise


def layer_of(module: nn.Module) -> Layer | None:
    """The layer that does what the module does in training; None where there is none."""
    from fedpac.native.fusion import FusedConvPool, hooked

    kind = type(module)
    parameters = list(module.parameters())
    if hooked(module) or len({p.requires_grad for p in parameters}) > 1:
        return None
    if isinstance(module, FusedConvPool) and kind is FusedConvPool:
        return Convolution(module) if native.available() else None
    if isinstance(module, nn.Conv2d) and kind is nn.Conv2d and module.padding_mode == "zeros":
        return PlainConvolution(module) if not isinstance(module.padding, str) else None
    if isinstance(module, nn.Linear) and kind is nn.Linear:
        return Linear(module)
    if isinstance(module, nn.ReLU | nn.LeakyReLU) and kind in (nn.ReLU, nn.LeakyReLU):
        return Activation(module) if getattr(module, "negative_slope", 0) >= 0 else None
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
        return Flatten()
    if isinstance(module, nn.Dropout) and kind is nn.Dropout and 0 < module.p < 1 and not module.inplace:
        return Dropout(module)
    return None


def layers_of(module: nn.Module) -> list[Layer] | None:
    """The module as a list of layers; None if one of them is unknown."""
    from fedpac.native.fusion import hooked

    if type(module) is nn.Sequential and not hooked(module):
        found: list[Layer] = []
        for child in module:
            some = layers_of(child)
            if some is None:
                return None
            found += some
        return found
    if type(module) is nn.Identity or (type(module) is nn.Dropout and module.p == 0):
        return []
    layer = layer_of(module)
    return None if layer is None else [layer]


def through(layers: Sequence[Layer], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer.forward(x)
    return x


def cross_entropy_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """Of the mean over the batch, by the logits: (softmax - one-hot) / n."""
    wanted = torch.zeros_like(logits).scatter_(1, labels[:, None], -1 / len(labels))
    return torch._log_softmax_backward_data(wanted, logits.log_softmax(1), 1, logits.dtype)  # as autograd does


def gradient_of(
    model: nn.Module,
    *,
    on_features: bool = False,
    pull: Callable[[Tensor, Tensor, Tensor], None] | None = None,
    slope: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Gradient | None:
    """The gradient of the cross-entropy of `model`, or None if it has a part whose derivative is not written out here.

    on_features  what comes in are features, for the head alone
    pull         (features, labels, gradient): adds to the gradient by the features that of another term
    slope        (outputs, targets): the gradient by the outputs of another loss than the cross-entropy
    """
    from fedpac.native.fusion import hooked

    if type(model) is not Classifier or hooked(model):
        return None
    body, head = [] if on_features else layers_of(model.body), layers_of(model.head)
    if body is None or head is None:
        return None
    layers = [*body, *head]
    used = [model.head] if on_features else [model]
    parameters = [p for module in used for _, p in module.named_parameters(remove_duplicate=False)]
    kinds = {(p.dtype, p.device.type) for p in parameters}
    if kinds not in ({(torch.float32, "cpu")}, {(torch.float64, "cpu")}) or len(set(parameters)) < len(parameters):
        return None
    if any((p.grad is None) == p.requires_grad for p in parameters):
        return None  # trained and frozen parts are not what these layers take them for
    first = next((i for i, layer in enumerate(layers) if layer.trained), len(layers))

    def down(grad: Tensor, start: int, stop: int) -> Tensor:
        for i in reversed(range(max(start, first), stop)):
            below = layers[i].backward(grad, i > first)
            if below is not None:
                grad = below
        return grad

    plain_head = native.available() and all(p.is_contiguous() for p in model.head.parameters())

    def head_down(z: Tensor, labels: Tensor) -> Tensor | None:
        """The gradient by the features, if it is wanted."""
        if slope is None and plain_head and len(head) == 1 and isinstance(head[0], Linear):
            m, z = head[0].module, z.contiguous()
            dz = torch.empty_like(z) if first < len(body) else None
            head_gradient(z, labels, m.weight, m.bias, dz, m.weight.grad, None if m.bias is None else m.bias.grad)
            return dz
        return down((slope or cross_entropy_gradient)(through(head, z), labels), len(body), len(layers))

    @torch.no_grad()
    def gradient(x: Tensor, labels: Tensor) -> None:
        with forward:
            z = through(body, x)
        with backward:
            grad = head_down(z, labels)
            if grad is not None and first < len(body):
                if pull is not None:
                    pull(z, labels, grad)
                down(grad, 0, len(body))

    return gradient
