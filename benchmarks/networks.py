"""The networks that peers and references train. Torch only: the peers' environment has no fedpac."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A body and a head."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def paper_cnn(channels: int, classes: int, usual_order: bool = False) -> Net:
    """The FedPAC paper's network; `usual_order` puts the activation before the pool: slower, the same numbers."""

    def block(inputs: int, outputs: int, kernel: int, padding: int) -> list[nn.Module]:
        after = [nn.LeakyReLU(), nn.MaxPool2d(2)] if usual_order else [nn.MaxPool2d(2), nn.LeakyReLU()]
        return [nn.Conv2d(inputs, outputs, kernel, padding=padding), *after]

    blocks = [*block(channels, 16, 5, 0), *block(16, 32, 5, 1)]
    flat = 32 * 5 * 5
    if channels == 3:
        blocks, flat = [*blocks, *block(32, 64, 3, 1)], 64 * 3 * 3
    return Net(nn.Sequential(*blocks, nn.Flatten(), nn.Linear(flat, 128), nn.LeakyReLU()), nn.Linear(128, classes))


def two_conv_cnn(classes: int = 10) -> Net:
    """The CNN of pfl's published CIFAR-10 benchmark: two 3x3 convolutions, one pool, dropout, 128 hidden units."""
    body = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5),
    )  # fmt: skip
    return Net(body, nn.Linear(128, classes))


def network(name: str, channels: int, classes: int, usual_order: bool = False) -> Net:
    return two_conv_cnn(classes) if name == "two-conv" else paper_cnn(channels, classes, usual_order)


def load_initial(net: nn.Module, initial: list[Tensor]) -> None:
    """Start where all others start. Parameters are given in the order of the layers."""
    with torch.no_grad():
        for own, given in zip(net.parameters(), initial, strict=True):
            own.copy_(given)
