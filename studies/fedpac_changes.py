"""What else could be changed in FedPAC? One change at a time, on seeds that no table reports.

    python -m studies.fedpac_changes results/fedpac-changes.csv runs/changes [MOST]

Fashion-MNIST, 20 clients with 100 samples each, 100 rounds. Written are the received accuracy in the last round, the
mean over clients, and its paired difference to FedPAC's with its error, the standard error over clients. Started
again, it goes on with the trials that are missing; at most MOST of them.
"""

import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from studies.rows import fill
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.collaboration.simplex_qp import solve_simplex_qps
from fedpac.collaboration.statistics import FeatureStatistics
from fedpac.collaboration.weights import quadratic_form
from fedpac.config import make_config
from fedpac.message import Message
from fedpac.methods.fedpac import FedPAC
from fedpac.runs.execute import advance
from fedpac.runs.read import read_run
from fedpac.server import Server
from fedpac.training import head_cross_entropy, train
from fedpac.weights import weighted_sum

SEEDS, ROUNDS = (10, 11), 100
CHANGED = "studies.fedpac_changes:Changed"


class Changed(FedPAC):
    """FedPAC with switches, each of them off."""

    name: ClassVar[str] = "changed"
    title: ClassVar[str] = "FedPAC, changed"

    own_bodies: Annotated[float, Field(ge=0, le=1, description="share of a body averaged as heads are")] = 0.0
    by_class: Annotated[bool, Field(description="rows of heads weigh by their class's samples, too")] = False
    generative: Annotated[bool, Field(description="clients are scored with heads from class means")] = False
    unbiased: Annotated[bool, Field(description="weights that charge peers for noise once; none is cut off")] = False
    refit: Annotated[bool, Field(description="received heads see an epoch of their client's data first")] = False

    def send(self, server: Server, client: int) -> Message:
        down = {**super().send(server, client), "w": server.state.get(f"w.{client}", server.state["w"])}
        generative = server.state.get(f"generative.{client}")
        return Message(**down) if generative is None else Message(**down, generative=generative)

    def received(self, client: Client, down: Message) -> nn.Module:
        w = self.assemble(client, down)
        if "generative" in down:
            return client.with_weights({**w, **down.weights("generative")})
        if not self.refit:
            return super().received(client, down)
        z = self.look(client, w, "refit")
        return client.with_weights(
            train(client, w, part="head", loss=head_cross_entropy, inputs=z, epochs=1, lr=self.head_lr, purpose="refit")
        )

    def weights(self, replies: dict[int, Message]) -> Tensor:
        if not self.unbiased:
            return super().weights(replies)
        noisy, gram = quadratic_form(
            [FeatureStatistics.from_tensors(up.weights("statistics")) for up in replies.values()]
        )
        ridge = 1e-9 * np.trace(gram) * np.eye(len(gram))
        # |h_i - sum a_j h_j|^2 has the noise of every h_j in it already: it is taken out of the part that is i's own
        return torch.from_numpy(solve_simplex_qps(gram + ridge, 2 * gram - noisy, np.eye(len(gram))))

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        super().merge(server, replies)
        ids, alpha = list(replies), self.weights(replies)
        bodies = [up.weights("w") for up in replies.values()]
        told = [FeatureStatistics.from_tensors(up.weights("statistics")) for up in replies.values()]
        for i, shares in zip(ids, alpha, strict=True):
            if self.own_bodies:
                group = weighted_sum(bodies, shares.tolist())
                mixed = weighted_sum([server.weights("w"), group], [1 - self.own_bodies, self.own_bodies])
                server.state[f"w.{i}"] = mixed
            if self.by_class or self.generative:
                own = told[ids.index(i)]
                counts = torch.stack([s.counts for s in told]).double() * shares[:, None]  # (m, K)
                given = (counts / counts.sum(0).clamp(min=1e-12)).T  # (K, m): who gives how much to a class
                lacking = counts.sum(0) == 0
                given[lacking] = shares
            if self.by_class:
                heads = [up.weights("head") for up in replies.values()]
                server.state[f"head.{i}"] = {
                    name: torch.einsum("km,mk...->k...", given, torch.stack([h[name] for h in heads]).double()).to(t)
                    for name, t in heads[0].items()
                }
            if self.generative:
                means = torch.einsum("km,mkd->kd", given, torch.stack([s.means for s in told]))
                within = torch.stack([s.n * s.scatter for s in told]).sum(0) / sum(s.n for s in told)
                level = float(within.trace()) / len(within)
                inverse = torch.linalg.inv(within + 0.1 * level * torch.eye(len(within), dtype=torch.float64))
                weight = means @ inverse
                bias = own.p.clamp(min=1e-3).log() - (weight * means).sum(1) / 2
                head = server.weights(f"head.{i}")
                server.state[f"generative.{i}"] = {
                    name: (weight if t.dim() == 2 else bias).to(t) for name, t in head.items()
                }


TRIALS: dict[str, dict[str, Any]] = {
    "FedPAC": {},
    "own bodies 0.2": {"own_bodies": 0.2},
    "own bodies 0.5": {"own_bodies": 0.5},
    "rows by class": {"by_class": True},
    "generative heads": {"generative": True, "covariance": "pooled"},
    "refitted heads": {"refit": True},
    "unbiased weights": {"unbiased": True},
    "pooled covariance": {"covariance": "pooled"},
    "local covariance": {"covariance": "local"},
    "centred features": {"centre": True},
    "three head epochs": {"head_epochs": 3},
    "rates fall to zero": {},
}
SCHEDULES = {"rates fall to zero": "cosine"}


def received(folder: Path, trial: str, seed: int) -> np.ndarray:
    """Each client's accuracy in the last round."""
    config = make_config(
        {
            "method": {"name": CHANGED, **TRIALS[trial]},
            "data": {"dataset": "fashion-mnist", "clients": 20, "samples": 100},
            "training": {"schedule": SCHEDULES.get(trial, "constant")},
            "run": {"seed": seed, "rounds": ROUNDS, "evaluate_every": 20, "personal_every": 0, "engine": "serial"},
        }
    )
    advance(config, folder)
    return 100 * read_run(folder).accuracy["received"][ROUNDS]


if __name__ == "__main__":
    table, runs = Path(sys.argv[1]), Path(sys.argv[2])
    most = int(sys.argv[3]) if len(sys.argv) > 3 else len(TRIALS) * len(SEEDS)

    def scores(trial: str, seed: int) -> np.ndarray:
        return received(runs / f"{trial.replace(' ', '-')}-seed{seed}", trial, seed)

    def measure(cell: tuple[str, int]) -> tuple[float, float, float]:
        ours, theirs = scores(*cell), scores("FedPAC", cell[1])
        gap = ours - theirs
        return float(ours.mean()), float(gap.mean()), float(gap.std(ddof=1) / np.sqrt(len(gap)))

    cells = [(trial, seed) for seed in SEEDS for trial in TRIALS]
    fill(table, ("trial", "seed", "received", "less FedPAC", "its error"), cells, measure, most, "seeds 10 and 11")
