"""Images from class means: what a server makes of the statistics that FedPAC leaves readable.

python -m studies.attack_means results/attack_means.csv [ROWS]    Fashion-MNIST, seed 0
python -m studies.attack_means --draw                             docs/img/attack-means.png

A site with 100 samples has 1, 3 or 20 of one class and sends statistics; the attacker has the mean of this class and
looks for the mean image. It trains a decoder from mean features to mean images on 20,000 public images, which no client
has, with the body as far as it knows it:

    plain              the server has the body of the round
    encrypted          it has not, but the initial weights follow from the public seed: it knows the first round's body,
                       and for later rounds it plays the federation with public images from the same initial weights
    secret start       nor does it know the initial weights (privacy.secret_start): it plays the federation from others

Differential privacy is that of fedpac.mods.dp for the whole statistics: local, one release, delta = 1e-3, F = 3.5. The
decoder is trained with as much noise. "guess" is the public mean image of the class, which needs no message.

PSNR and SSIM compare with the true mean image. found_percent says how often it is the nearest to the reconstruction
among 100 mean images of the same class; a guess at random finds 1 %.
"""

import sys
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from studies.attack_tools import CLASSES, PUBLIC, budget_of, found, network, picture, psnr, scene, ssim
from studies.rows import fill
from torch import Tensor, nn

import fedpac
from fedpac.collaboration.statistics import FeatureStatistics, feature_statistics
from fedpac.data.clients import ClientData, Samples, Scenario
from fedpac.mods.dp import cut_statistics, drawn_from, noise_for, noisy_statistics

ROUNDS = 10
COUNTS = (1, 3, 20)
SITE = 100  # samples
TRIALS = 200
STEPS, BATCH, WIDTH = 2000, 64, 512
MOST_FEATURES = 3.5  # F
DEFENCES = ("nothing", "epsilon 1000", "epsilon 100", "encrypted", "encrypted and secret start", "guess")
PLAN = [
    *[(str(ROUNDS + 1), str(count), defence) for count in COUNTS for defence in DEFENCES],
    *[("1", str(count), "encrypted") for count in COUNTS],
    ("1", "1", "encrypted and secret start"),
]


def played() -> Scenario:
    """A federation of as many public images, with the same classes at every client: their counts are readable."""
    world, draw = scene(), torch.Generator().manual_seed(3)
    clients = []
    public = world.public[:PUBLIC]
    for client in world.scenario.clients:
        counts = enumerate(client.train.class_counts(CLASSES).tolist())
        own = torch.cat([world.some(public, k, count, draw) for k, count in counts])
        clients.append(ClientData(Samples(world.pool, own), client.test))
    return Scenario(clients, CLASSES, world.scenario.shape, "played by the attacker")


@cache
def body_after(rounds: int, whose: str) -> nn.Module:
    """The body that clients receive after so many rounds: the federation's, or what an attacker plays in its place."""
    start = network(1 if whose == "own" else 0)
    if not rounds:
        return start.body
    clients = scene().scenario if whose == "true" else played()
    result = fedpac.fit(start, clients, "fedpac", rounds=rounds, evaluate_every=rounds, engine="serial")
    start.load_state_dict({**start.state_dict(), **result.server.weights("w")})
    return start.body


class Decoder(nn.Module):
    """From a mean feature and its class to the mean image, in the units of the features that it was trained on."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.middle, self.spread = features.mean(0), features.std(0) + 1e-3
        self.layers = nn.Sequential(
            nn.Linear(features.shape[1] + CLASSES, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(),
            nn.Linear(WIDTH, 28 * 28), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, features: Tensor, k: Tensor) -> Tensor:
        given = (features - self.middle) / self.spread
        # more than any feature is noise, and tells nothing
        out: Tensor = self.layers(torch.cat([given.clamp(-10, 10), F.one_hot(k, CLASSES).float()], 1))
        return out.view(-1, 1, 28, 28)


@cache
def decoder(body: nn.Module, count: int, noise: float) -> Decoder:
    """Trained on means of so many public images of a class, with noise of that deviation on the features."""
    world, draw = scene(), torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    public = world.public[:PUBLIC]
    features, images, labels = world.features(body, public), world.images[public], world.labels[public]
    by_class, sizes = labels.argsort(), labels.bincount(minlength=CLASSES)
    first = sizes.cumsum(0) - sizes
    made = Decoder(features)
    optimizer = torch.optim.Adam(made.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, STEPS)
    for _ in range(STEPS):
        k = torch.randint(CLASSES, (BATCH,), generator=draw)
        places = (torch.rand(BATCH, count, generator=draw) * sizes[k, None]).long()
        chosen = by_class[first[k, None] + places]
        mean = features[chosen].mean(1)
        loss = F.mse_loss(made(mean + noise * torch.randn(mean.shape, generator=draw), k), images[chosen].mean(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return made


def sent_mean(body: nn.Module, own: Tensor, k: int, defence: str, draw: torch.Generator) -> Tensor:
    """The mean feature of the class, as a site with these and other images sends it."""
    world = scene()
    rest = world.held[world.labels[world.held] != k]
    site = torch.cat([own, rest[torch.randint(len(rest), (SITE - len(own),), generator=draw)]])
    given = feature_statistics(world.features(body, site), world.labels[site], CLASSES).to_tensors()
    if budget := budget_of(defence):
        noise = noise_for(budget, 1e-3, 1)
        given = noisy_statistics(cut_statistics(given, MOST_FEATURES), noise, MOST_FEATURES, drawn_from(draw))
    return (FeatureStatistics.from_tensors(given).h[k] * (SITE / len(own))).float()  # h: share times mean


def deviation(defence: str, count: int) -> float:
    """Of the noise on a class mean with so many of the site's samples, as the attacker reckons with it."""
    budget = budget_of(defence)
    return MOST_FEATURES * noise_for(budget, 1e-3, 1) * 3**0.5 * SITE / count if budget else 0.0


def attack(rounds: int, count: int, defence: str, trials: int = TRIALS) -> tuple[Tensor, Tensor, Tensor]:
    """The true mean images, their reconstructions, and the classes."""
    world, draw = scene(), torch.Generator().manual_seed(1)
    k = torch.arange(trials) % CLASSES
    chosen = torch.stack([world.some(world.held, int(each), count, draw) for each in k])
    truth = world.images[chosen].mean(1)
    if defence == "guess":
        of_class = [world.images[world.public[world.labels[world.public] == each]].mean(0) for each in range(CLASSES)]
        return truth, torch.stack(of_class)[k], k
    known = {"encrypted": "same start", "encrypted and secret start": "own"}.get(defence, "true")
    made = decoder(body_after(rounds, known), count, deviation(defence, count))
    body = body_after(rounds, "true")
    means = [sent_mean(body, own, int(each), defence, draw) for own, each in zip(chosen, k, strict=True)]
    with torch.no_grad():
        return truth, made(torch.stack(means), k), k


def measure(cell: tuple[str, str, str]) -> tuple[object, ...]:
    round, count, defence = int(cell[0]), int(cell[1]), cell[2]
    truth, made, k = attack(round - 1, count, defence)
    each = torch.tensor([(psnr(*pair), ssim(*pair)) for pair in zip(truth, made, strict=True)])
    return (*each.mean(0).tolist(), f"{100 * found(truth, made, k, count):.1f}", len(truth))


def draw() -> None:
    names = {"nothing": "plain", "encrypted and secret start": "encrypted,\nsecret start", "guess": "guess"}
    lines: dict[str, Tensor] = {}
    for defence in DEFENCES:
        lines["original"], lines[names.get(defence, defence)], _ = attack(ROUNDS, 1, defence, CLASSES)
    picture("docs/img/attack-means.png", lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--draw":
        draw()
    else:
        columns = ("round", "images_in_mean", "defence", "psnr", "ssim", "found_percent", "trials")
        fill(Path(sys.argv[1]), columns, PLAN, measure, int(sys.argv[2]) if len(sys.argv) > 2 else len(PLAN))
