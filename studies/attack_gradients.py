"""Images from gradients: what a server makes of one client's update.

python -m studies.attack_gradients results/attack_gradients.csv [ROWS]    Fashion-MNIST, seed 0
python -m studies.attack_gradients --draw                                 docs/img/attack-gradients.png

A client takes one SGD step on 1, 8 or 50 images from the initial weights. The attacker has the model before and after
and the number of images of each class, which FedPAC sends, and knows 20,000 public images.

1  The head's gradient is sum_i (p_i - e_i) h_i^T / n over images with features h_i. At the start p_i depends on little
   but the class, so it is a linear map of the sums of features in each class: least squares, with the public mean
   features as a prior, give them back.
2  The decoder of studies.attack_means makes the mean image of each class of them.
3  If there was one image only, it is refined until its own gradient points along the one that was seen (Geiping et
   al., NeurIPS 2020).

Differential privacy is local: epsilon is that of one release, delta = 1e-3, and the prior counts for as much as the
noise asks. Where weights are encrypted a guess is left, the public mean image of the class. Every image is compared
with what was made of its class, see studies.attack_means for the columns.
"""

import sys
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from studies.attack_means import decoder
from studies.attack_tools import CLASSES, PUBLIC, budget_of, found, network, picture, psnr, scene, ssim
from studies.rows import fill
from torch import Tensor, nn

from fedpac.mods.dp import noise_for

BATCHES = {1: 20, 8: 5, 50: 2}  # images in a step, and how many steps are attacked
DEFENCES = ("nothing", "epsilon 1000", "epsilon 100", "encrypted")
STEPS, RATE = 400, 0.1
TV = 1e-2  # how much smooth images are preferred
PLAN = [(str(batch), defence) for batch in BATCHES for defence in DEFENCES]


def gradient(model: nn.Module, images: Tensor, y: Tensor, graph: bool = False) -> list[Tensor]:
    loss = F.cross_entropy(model(scene().pixels.taken(images)), y)
    return list(torch.autograd.grad(loss, list(model.parameters()), create_graph=graph))


def length_of(tensors: list[Tensor]) -> Tensor:
    return torch.stack([t.square().sum() for t in tensors]).sum().sqrt()


def roughness(x: Tensor) -> Tensor:
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


class Attacker:
    """What it knows of public images, in the eyes of the initial network."""

    def __init__(self) -> None:
        world = scene()
        self.model = network(0)
        public = world.public[:PUBLIC]
        y = world.labels[public]
        features = world.features(self.model.body, public)
        with torch.no_grad():
            p = self.model.head(features).softmax(1)
        self.features, self.p, self.image = (
            torch.stack([values[y == k].mean(0) for k in range(CLASSES)])
            for values in (features, p, world.images[public])
        )
        self.variances, self.axes = torch.linalg.eigh(torch.cov((features - self.features[y]).T))

    def class_means(self, head: Tensor, counts: Tensor, deviation: float) -> Tensor:
        """The likeliest mean features of each class in the step, from the head's gradient with noise of that deviation.

        Sums of features vary about the public ones as the features of public images do: independently along the axes
        of their covariance.
        """
        n, there = int(counts.sum()), counts > 0
        prior = counts[there, None] * self.features[there]
        A = (self.p.T - torch.eye(CLASSES))[:, there]
        seen = A.T @ (n * head - A @ prior) @ self.axes
        variances = self.variances.clamp(min=1e-6)[:, None] * counts[there]
        trust = 1e-3 + (n * deviation) ** 2 / variances  # in the prior: (features, classes)
        rest = torch.linalg.solve(A.T @ A + torch.diag_embed(trust), seen.T[..., None])[..., 0].T @ self.axes.T
        means = self.features.clone()
        means[there] = (prior + rest) / counts[there, None]
        return means

    def refined(self, start: Tensor, seen: list[Tensor], y: Tensor) -> Tensor:
        raw = torch.logit(start.clamp(0.02, 0.98)).requires_grad_()
        optimizer = torch.optim.Adam([raw], lr=RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        for _ in range(STEPS):
            images = torch.sigmoid(raw)
            own = gradient(self.model, images, y, graph=True)
            along = torch.stack([(g * s).sum() for g, s in zip(own, seen, strict=True)]).sum()
            loss = 1 - along / (length_of(own) * length_of(seen)) + TV * roughness(images)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return torch.sigmoid(raw.detach())

    def images(self, seen: list[Tensor], y: Tensor, deviation: float) -> Tensor:
        counts = y.bincount(minlength=CLASSES)
        means = self.class_means(seen[-2], counts, deviation)
        made = {
            k: decoder(self.model.body, int(counts[k]), 0.0)(means[k : k + 1], torch.tensor([k]))
            for k in set(y.tolist())
        }
        start = torch.cat([made[int(k)].detach() for k in y])
        return self.refined(start, seen, y) if len(y) == 1 and not deviation else start


@cache
def attacker() -> Attacker:
    return Attacker()


def attack(batch: int, defence: str, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """True images of all steps, what was made of them, and their classes."""
    world, truths, made, classes = scene(), [], [], []
    order = world.held[torch.randperm(len(world.held), generator=torch.Generator().manual_seed(0))]
    torch.manual_seed(1)
    for index in order.split(batch)[:steps]:
        truth, y = world.images[index], world.labels[index]
        seen = gradient(attacker().model, truth, y)
        deviation = noise_for(budget, 1e-3, 1) * float(length_of(seen)) if (budget := budget_of(defence)) else 0.0
        seen = [g + deviation * torch.randn_like(g) for g in seen]
        made.append(attacker().image[y] if defence == "encrypted" else attacker().images(seen, y, deviation))
        truths.append(truth)
        classes.append(y)
    return torch.cat(truths), torch.cat(made), torch.cat(classes)


def measure(cell: tuple[str, str]) -> tuple[object, ...]:
    batch, defence = int(cell[0]), cell[1]
    truth, made, k = attack(batch, defence, BATCHES[batch])
    each = torch.tensor([(psnr(*pair), ssim(*pair)) for pair in zip(truth, made, strict=True)])
    return (*each.mean(0).tolist(), f"{100 * found(truth, made, k, 1):.1f}", len(truth))


def draw() -> None:
    names, lines = {"nothing": "plain"}, {}
    for defence in DEFENCES:
        lines["original"], lines[names.get(defence, defence)], _ = attack(1, defence, 10)
    picture("docs/img/attack-gradients.png", lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--draw":
        draw()
    else:
        columns = ("images_in_step", "defence", "psnr", "ssim", "found_percent", "images")
        fill(Path(sys.argv[1]), columns, PLAN, measure, int(sys.argv[2]) if len(sys.argv) > 2 else len(PLAN))
