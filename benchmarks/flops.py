"""How many floating-point operations a FedPAC round needs, counted from the shapes of the network.

Counted are the multiplications and additions of convolutions and linear layers, two for each pair; not counted are
bias, pool, activation, loss, the SGD step and what the server does.

The passes of one client visit: features of the training set with the received body; one epoch of the head on these
features (forward and weight gradient); E epochs of the body (forward; weight gradients of all layers of the body; input
gradients of all layers but the first); features with the new body; and two evaluations on the test set. The head is
fixed while the body is trained, so it has an input gradient and no weight gradient then.

Dense: a convolution's gradients cost what its forward pass costs. Pool-sparse: behind a 2x2 max-pool only one of four
outputs has a gradient, so each of a convolution's two gradients costs as much as the pooled outputs need.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.networks import Net


@dataclass(frozen=True)
class Layer:
    forward: int  # operations for one sample
    gradient: int  # of one of the two gradients, where only pooled outputs have one
    head: bool


def layers(net: Net, shape: tuple[int, ...]) -> list[Layer]:
    """The layers that multiply, in order, with the sizes that one sample really gives them."""
    found: list[Layer] = []
    pooled: list[int] = []  # outputs of the pool behind the convolution that came last

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            each = 2 * module.weight[0].numel()
            found.append(Layer(output.numel() * each, output.numel() * each, False))
            pooled.append(each)
        elif isinstance(module, nn.MaxPool2d):
            found[-1] = Layer(found[-1].forward, output.numel() * pooled[-1], False)
        elif isinstance(module, nn.Linear):
            operations = 2 * module.weight.numel()
            found.append(Layer(operations, operations, module is net.head))

    hooks = [m.register_forward_hook(look) for m in net.modules()]
    with torch.no_grad():
        net(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return found


def fedpac_round(
    net: Net, shape: tuple[int, ...], clients: int, train: int, test: int, epochs: int, sparse: bool
) -> float:
    """Operations of a whole round; `train` and `test` are samples of one client."""
    body = [layer for layer in layers(net, shape) if not layer.head]
    (head,) = [layer for layer in layers(net, shape) if layer.head]

    def gradient(layer: Layer) -> int:
        return layer.gradient if sparse else layer.forward

    forward_body = sum(layer.forward for layer in body)
    backward_body = sum(map(gradient, body)) + sum(map(gradient, body[1:])) + head.forward
    visit = (
        2 * train * forward_body
        + train * 2 * head.forward
        + epochs * train * (forward_body + head.forward + backward_body)
        + 2 * test * (forward_body + head.forward)
    )
    return float(clients * visit)
