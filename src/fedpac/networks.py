"""The networks by name, each a function of the shape of a sample and the number of outputs.

Beside the paper's two and the smallest ones there is one for images of any size, two residual networks whose
normalisation keeps no running statistics (group norm), and a transformer for tokens. A network of one's own is a
function of the same two arguments, named 'package.module:function'.
"""

import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from fedpac.errors import ConfigError, unknown
from fedpac.models import Classifier, conv_block, logistic_regression, mlp, paper_cnn
from fedpac.randomness import stream_seed

Shape = tuple[int, ...]
SMALL_SIDE = 7  # pixels of the last feature maps of `cnn`


def cnn(shape: Shape, classes: int) -> Classifier:
    """Blocks of convolution, pooling and activation until the shorter side has 7 pixels; features have d = 128."""
    channels, height, width = _image(shape, "cnn", 4)
    blocks: list[nn.Module] = []
    inputs, outputs = channels, 16
    while min(height, width) > SMALL_SIDE or not blocks:
        blocks += conv_block(inputs, outputs, 3, 1)
        inputs, outputs = outputs, min(2 * outputs, 64)
        height, width = height // 2, width // 2
    body = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(inputs * height * width, 128), nn.LeakyReLU())
    return Classifier(body, nn.Linear(128, classes))


class Residual(nn.Module):
    """Two convolutions, added to what came in."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm_one = group_norm(outputs)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_two = group_norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), group_norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm_one(self.one(x)))
        return torch.relu(self.norm_two(self.two(y)) + self.shortcut(x))


def group_norm(channels: int) -> nn.GroupNorm:
    """Eight channels or more in a group, at most 32 groups: nothing that depends on other samples is kept."""
    return nn.GroupNorm(math.gcd(channels, min(32, max(1, channels // 8))), channels)


def resnet(shape: Shape, classes: int, widths: tuple[int, ...], blocks: int, name: str) -> Classifier:
    channels, height, width = _image(shape, name, 8)
    large = min(height, width) > 64  # as for ImageNet: a quarter of the side before the first block
    stem: list[nn.Module] = [
        nn.Conv2d(channels, widths[0], 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
    ]
    stem += [group_norm(widths[0]), nn.ReLU(), *([nn.MaxPool2d(3, 2, 1)] if large else [])]
    layers, inputs = stem, widths[0]
    for stage, outputs in enumerate(widths):
        for block in range(blocks):
            layers.append(Residual(inputs, outputs, 2 if stage and not block else 1))
            inputs = outputs
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Classifier(body, nn.Linear(inputs, classes))


def resnet8_gn(shape: Shape, classes: int) -> Classifier:
    """Three residual blocks of 16, 32 and 64 channels with group norm; features have d = 64."""
    return resnet(shape, classes, (16, 32, 64), 1, "resnet8-gn")


def resnet18_gn(shape: Shape, classes: int) -> Classifier:
    """ResNet-18 with group norm; features have d = 512."""
    return resnet(shape, classes, (64, 128, 256, 512), 2, "resnet18-gn")


class Tokens(nn.Module):
    """Embeddings and positions of tokens, through an encoder, to their mean."""

    def __init__(self, length: int, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.encoder(self.embedding(x) + self.position)).mean(dim=1)


def transformer(shape: Shape, classes: int, vocabulary: int | None = None) -> Classifier:
    """A transformer encoder of two layers on sequences of tokens; features have d = 64."""
    if vocabulary is None or len(shape) != 1:
        kind = "floats" if vocabulary is None else "whole numbers"
        raise ConfigError(
            "the network 'transformer' takes token sequences, integers from 0 of shape (length,); these "
            f"samples are {kind} of shape {shape}"
        )
    return Classifier(Tokens(shape[0], vocabulary, width=64, heads=4, layers=2), nn.Linear(64, classes))


@dataclass(frozen=True)
class Network:
    """make: called with the shape of a sample and the number of outputs, of tokens also with how many there are."""

    make: Callable[..., nn.Module]
    takes: str
    example: Shape  # a sample's shape

    @property
    def about(self) -> str:
        return (self.make.__doc__ or "").strip().split("\n")[0]


NETWORKS = {
    "paper": Network(paper_cnn, "28x28 grey or 32x32 colour images", (1, 28, 28)),
    "cnn": Network(cnn, "images", (3, 64, 64)),
    "resnet8-gn": Network(resnet8_gn, "images", (3, 32, 32)),
    "resnet18-gn": Network(resnet18_gn, "images", (3, 32, 32)),
    "mlp": Network(mlp, "anything but tokens", (30,)),
    "logistic": Network(logistic_regression, "anything but tokens", (30,)),
    "transformer": Network(transformer, "token sequences", (32,)),
}


def is_own_network(name: object) -> bool:
    """Whether the name is 'package.module:function': somebody's own code, which runs when it is imported."""
    return isinstance(name, str) and ":" in name


def find_network(name: str) -> Callable[..., nn.Module]:
    """The function that makes the network of that name."""
    if not is_own_network(name):
        if name not in NETWORKS:
            raise ConfigError(unknown("network", name, NETWORKS))
        return NETWORKS[name].make
    module, _, attribute = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:  # an installed command does not look for modules beside the user
        sys.path.append(here)
    try:
        make = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever the user's module does when it is imported
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"model '{name}': {what}; expected an importable 'package.module:function'") from None
    if not callable(make):
        raise ConfigError(f"model '{name}' is a {type(make).__name__}; expected a function of shape and classes")
    return cast(Callable[..., nn.Module], make)


def build_model(name: str, shape: Shape, classes: int, seed: int, vocabulary: int | None = None) -> nn.Module:
    """The named network, initialised from the run's own stream and not from torch's global one.

    classes     0 where a number is predicted: one output
    vocabulary  of tokens, how many different ones there are
    """
    make, outputs = find_network(name), classes or 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "init"))
        if not is_own_network(name):
            return make(shape, outputs, vocabulary) if make is transformer else make(shape, outputs)
        try:
            model: object = make(shape, outputs)
        except Exception as error:  # whatever the user's function raises
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(f"model '{name}', called with {shape} and {outputs}: {what}") from None
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model '{name}' gave a {type(model).__name__}; expected a torch module with a body and a head"
        )
    return model


def network_for(name: str, sample: Tensor, classes: int, seed: int) -> nn.Module:
    """The named network for samples like this one; of tokens, one that holds the largest."""
    tokens = None if sample.is_floating_point() else int(sample.max()) + 1
    return build_model(name, tuple(sample.shape), classes, seed, tokens)


def _image(shape: Shape, name: str, side: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < side:
        raise ConfigError(
            f"the network '{name}' takes images of shape (channels, height, width) with {side} pixels a side or more, "
            f"not {shape}; 'mlp' and 'logistic' take anything"
        )
    return shape[0], shape[1], shape[2]
