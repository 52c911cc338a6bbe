"""Images from gradients: what an attacker makes of one client's update (Geiping et al., NeurIPS 2020).

python -m studies.attacks results/attacks.csv [ROWS]    Fashion-MNIST, seed 0
python -m studies.attacks --draw                        docs/img/attack-gradients.png

A client takes one SGD step on 1, 8 or 50 images; the attacker has the model before and after, and the labels, and looks
for images that would give the same change. Differential privacy is local (the attacker is the server): epsilon is that
of one release, delta = 1e-3. PSNR and SSIM compare with the true images, each with the reconstruction that fits it
best. Where weights are encrypted nothing is left but a guess, the mean image of the data set.

studies.attack_means and studies.attack_membership have the other attacks.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from studies.rows import fill
from torch import Tensor, nn

from fedpac.config import make_config
from fedpac.data.clients import Pool
from fedpac.data.scenario import build
from fedpac.models import Classifier
from fedpac.mods.dp import noise_for
from fedpac.networks import build_model

BUDGETS = (1000.0, 100.0)
STEPS = 400
TV = 1e-3  # how much smooth images are preferred
SHAPE, CLASSES = (1, 28, 28), 10
DEFENCES = ("nothing", *(f"epsilon {budget:g}" for budget in BUDGETS), "encrypted")
PLAN = [("gradient", str(batch), defence) for batch in (1, 8, 50) for defence in DEFENCES]


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


def quality(truth: Tensor, found: Tensor) -> tuple[float, float]:
    """Mean PSNR and SSIM, with the assignment of reconstructions to images that is best."""
    table = np.array([[psnr(t, f) for f in found] for t in truth])
    rows, columns = linear_sum_assignment(-table)
    pairs = list(zip(rows, columns, strict=True))
    return float(table[rows, columns].mean()), float(np.mean([ssim(truth[i], found[j]) for i, j in pairs]))


def length_of(tensors: list[Tensor]) -> Tensor:
    return torch.stack([t.square().sum() for t in tensors]).sum().sqrt()


def roughness(x: Tensor) -> Tensor:
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


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


def search(count: int, loss_of: Callable[[Tensor], Tensor], rate: float = 0.1) -> Tensor:
    """Images in [0, 1] that make the loss small."""
    torch.manual_seed(0)
    raw = torch.randn(count, *SHAPE).mul(0.1).requires_grad_()
    optimizer = torch.optim.Adam([raw], lr=rate)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(torch.sigmoid(raw)).backward()
        if step == 3 * STEPS // 4:
            optimizer.param_groups[0]["lr"] = rate / 5
        optimizer.step()
    return torch.sigmoid(raw.detach())


def gradient(model: nn.Module, x: Tensor, y: Tensor, graph: bool = False) -> list[Tensor]:
    loss = F.cross_entropy(model(x), y)
    return list(torch.autograd.grad(loss, list(model.parameters()), create_graph=graph))


def invert_gradient(model: nn.Module, seen: list[Tensor], y: Tensor, pixels: Pixels) -> Tensor:
    length = length_of(seen)

    def loss(images: Tensor) -> Tensor:
        own = gradient(model, pixels.taken(images), y, graph=True)
        along = torch.stack([(g * s).sum() for g, s in zip(own, seen, strict=True)]).sum()
        return 1 - along / (length_of(own) * length) + TV * roughness(images)

    return search(len(y), loss)


def noisy(tensors: list[Tensor], clip: float, budget: float) -> list[Tensor]:
    """Cut to the norm and covered with the noise of one local release."""
    torch.manual_seed(1)
    length = float(length_of(tensors))
    z = noise_for(budget, 1e-3, 1)
    return [t * min(1.0, clip / length) + z * clip * torch.randn_like(t) for t in tensors]


class Scene:
    """The images that are attacked, and what everybody knows."""

    def __init__(self) -> None:
        pool = build(make_config({"data": {"dataset": "fashion-mnist", "clients": 20}}).data, 0).clients[0].train.pool
        self.pixels = Pixels(pool)
        self.x, self.y = pool.x[:2000].float() / 255, pool.y[:2000]
        self.guess = pool.x[2000:].float().mean(0) / 255
        self.model = network(0)

    def of_gradient(self, batch: int, defence: str) -> tuple[Tensor, Tensor]:
        """The true images, and what the attacker makes of one step on them."""
        truth, labels = self.x[:batch], self.y[:batch]
        if defence == "encrypted":
            return truth, self.guess.expand(batch, *SHAPE)
        seen = gradient(self.model, self.pixels.taken(truth), labels)
        given = noisy(seen, float(length_of(seen)), budget) if (budget := budget_of(defence)) else seen
        return truth, invert_gradient(self.model, given, labels, self.pixels)


def budget_of(defence: str) -> float | None:
    return float(defence.removeprefix("epsilon ")) if defence.startswith("epsilon") else None


def measure(cell: tuple[str, str, str]) -> tuple[float, float]:
    _, batch, defence = cell
    return quality(*Scene().of_gradient(int(batch), defence))


def draw() -> None:
    scene, lines = Scene(), {}
    for defence in DEFENCES:
        lines["original"], lines[{"nothing": "plain"}.get(defence, defence)] = scene.of_gradient(8, defence)
    picture("docs/img/attack-gradients.png", lines)


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


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--draw":
        draw()
    else:
        columns = ("attack", "images", "defence", "psnr", "ssim")
        fill(Path(sys.argv[1]), columns, PLAN, measure, int(sys.argv[2]) if len(sys.argv) > 2 else len(PLAN))
