"""What the studies of attacks share: the network, how images are compared and shown, and who knows which images."""

from functools import cache
from typing import cast

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpac.config import make_config
from fedpac.data.clients import Pool
from fedpac.data.scenario import build
from fedpac.models import Classifier
from fedpac.networks import build_model

SHAPE, CLASSES = (1, 28, 28), 10
PUBLIC = 20_000  # images that attackers learn from


def network(seed: int) -> Classifier:
    return cast(Classifier, build_model("paper", SHAPE, CLASSES, seed))


def psnr(one: Tensor, other: Tensor) -> float:
    return float(-10 * torch.log10((one - other).square().mean().clamp(min=1e-10)))


def ssim(one: Tensor, other: Tensor) -> float:
    """Of images (1, H, W) in [0, 1], with the usual Gaussian window of 11 pixels."""
    axis = torch.arange(11) - 5.0
    g = torch.exp(-axis.square() / (2 * 1.5**2))
    window = (g[:, None] * g[None, :] / g.sum() ** 2)[None, None]
    mean = [F.conv2d(x[None], window) for x in (one, other)]
    square = [F.conv2d(x[None] * y[None], window) for x, y in ((one, one), (other, other), (one, other))]
    (a, b), (aa, bb, ab) = mean, square
    top = (2 * a * b + 1e-4) * (2 * (ab - a * b) + 9e-4)
    return float((top / ((a * a + b * b + 1e-4) * (aa - a * a + bb - b * b + 9e-4))).mean())


class Pixels:
    """Between images in [0, 1] and what the network takes."""

    def __init__(self, pool: Pool) -> None:
        assert pool.mean is not None
        assert pool.std is not None
        self.mean, self.std = pool.mean[0], pool.std[0]

    def shown(self, x: Tensor) -> Tensor:
        return (x * self.std + self.mean).clamp(0, 1)

    def taken(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean) / self.std


def budget_of(defence: str) -> float | None:
    return float(defence.removeprefix("epsilon ")) if defence.startswith("epsilon") else None


class Scene:
    """A federation of 20 clients with 200 samples, and public images that none of them has."""

    def __init__(self) -> None:
        data = {"dataset": "fashion-mnist", "clients": 20, "samples": 200, "test_samples": 50}
        self.scenario = build(make_config({"data": data}).data, 0)
        self.pool = self.scenario.clients[0].train.pool
        self.pixels, self.images, self.labels = Pixels(self.pool), self.pool.x.float() / 255, self.pool.y
        self.held = torch.cat([client.train.index for client in self.scenario.clients]).unique()
        others = torch.ones(len(self.labels), dtype=torch.bool)
        others[self.held] = False
        free = others.nonzero().flatten()
        self.public = free[torch.randperm(len(free), generator=torch.Generator().manual_seed(0))]

    def features(self, body: nn.Module, index: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([body(self.pixels.taken(self.images[part])) for part in index.split(1000)])

    def some(self, source: Tensor, k: int, count: int, draw: torch.Generator) -> Tensor:
        """Indices of so many images of the class."""
        own = source[self.labels[source] == k]
        return own[torch.randint(len(own), (count,), generator=draw)]


@cache
def scene() -> Scene:
    return Scene()


def found(truth: Tensor, guessed: Tensor, k: Tensor, count: int) -> float:
    """How often the true mean image is nearest among 99 others of the same class."""
    world, draw, hits = scene(), torch.Generator().manual_seed(2), 0
    for true, made, each in zip(truth, guessed, k, strict=True):
        others = world.some(world.public[PUBLIC:], int(each), 99 * count, draw).view(99, count)
        far = (world.images[others].mean(1) - made).square().sum((1, 2, 3))
        hits += bool((true - made).square().sum() < far.min())
    return hits / len(truth)


def picture(path: str, lines: dict[str, Tensor]) -> None:
    columns = max(len(images) for images in lines.values())
    figure, axes = plt.subplots(len(lines), columns, figsize=(columns * 0.9 + 1.2, len(lines) * 0.95), squeeze=False)
    for row, (name, images) in zip(axes, lines.items(), strict=True):
        for axis, image in zip(row, images, strict=True):
            axis.imshow(image[0], cmap="gray", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)
