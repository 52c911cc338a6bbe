"""Was this sample trained on? Membership inference against clients' models, by the loss and by shadow federations.

python -m studies.attack_membership results/attack_membership.csv [ROWS]    Fashion-MNIST, seeds 0 to 8

Small sites: 10 clients with 100 candidates each, of which every federation trains on 50, drawn anew (batches of 10,
30 rounds). Nine federations are played. Each is attacked once, and the other eight are the attacker's shadows (LiRA,
Carlini et al., S&P 2022): of every candidate it knows how sure models are of it that trained on it, and others.

    score    log N(c; mean_in, var_in) - log N(c; mean_out, var_out),  c = log p_y / (1 - p_y)

loss_auc goes by the loss alone (Yeom et al., CSF 2018). Differential privacy is central, over all rounds, delta = 1e-3,
C = 0.1, F = 3.5, with combined heads: it covers all that a received model is made of. Encryption changes no model.
"""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve
from studies.attack_tools import budget_of, network
from studies.rows import fill

import fedpac
from fedpac.config import make_config
from fedpac.data.scenario import build
from fedpac.methods.base import Which

CLIENTS, CANDIDATES, ROUNDS, FEDERATIONS = 10, 100, 30, 9
PLAN = [
    *[("fedpac", which, d) for d in ("nothing", "epsilon 1000", "epsilon 100") for which in ("received", "personal")],
    ("local", "personal", "nothing"),
]
Array = NDArray[np.float64]


@cache
def played(method: str, defence: str) -> tuple[NDArray[np.bool_], dict[str, Array], dict[str, Array]]:
    """Who was in (federation, client, candidate), how sure each model is of each candidate, and whether it is right."""
    data = {"dataset": "fashion-mnist", "clients": CLIENTS, "samples": CANDIDATES, "test_samples": 50}
    scenario = build(make_config({"data": data}).data, 0)
    half = np.tile(np.arange(CANDIDATES) < CANDIDATES // 2, (FEDERATIONS, CLIENTS, 1))
    inside = np.random.default_rng(0).permuted(half, axis=2)
    budget = budget_of(defence)
    settings = {"summed_centroids": True} if budget else None
    privacy = {"budget": budget, "clip": 0.1, "features": 3.5} if budget else None
    sure, right = ({which: np.zeros(inside.shape) for which in ("received", "personal")} for _ in range(2))
    for f in range(FEDERATIONS):
        clients = [
            replace(c, train=c.train.only(torch.from_numpy(inside[f, i]))) for i, c in enumerate(scenario.clients)
        ]
        result = fedpac.fit(
            network(0), replace(scenario, clients=clients), method, rounds=ROUNDS, batch=10, seed=f,
            evaluate_every=ROUNDS, engine="serial", settings=settings, privacy=privacy,
        )  # fmt: skip
        for i, client in enumerate(scenario.clients):
            x, y = client.train.tensors()
            for which in sure:
                with torch.no_grad():
                    logits = result.model(i, cast(Which, which)).module(x).double()
                own = logits.gather(1, y[:, None])[:, 0]
                sure[which][f, i] = own - logits.scatter(1, y[:, None], -torch.inf).logsumexp(1)
                right[which][f, i] = logits.argmax(1) == y
    return inside, sure, right


def likelihood_ratio(inside: NDArray[np.bool_], sure: Array, f: int) -> Array:
    """Of every candidate of the federation f, from how the others' models see it; the mean where one side is empty."""
    others = np.arange(len(sure)) != f
    c, member = sure[others], inside[others]

    def normal(chosen: NDArray[np.bool_]) -> Array:
        count = chosen.sum(0)
        mean = np.where(count, (c * chosen).sum(0) / count.clip(1), c[chosen].mean())
        variance = ((c - mean) ** 2)[chosen].mean()  # one for all candidates: there are few shadows for each
        return cast(Array, -((sure[f] - mean) ** 2) / (2 * variance) - np.log(variance) / 2)

    return normal(member) - normal(~member)


def measure(cell: tuple[str, str, str]) -> tuple[object, ...]:
    method, which, defence = cell
    inside, sure, right = played(method, defence)
    scores = np.stack([likelihood_ratio(inside, sure[which], f) for f in range(FEDERATIONS)])
    member = inside.ravel()
    wrongly, rightly, _ = roc_curve(member, scores.ravel())
    caught = float(rightly[wrongly <= 0.01].max())
    return (
        float(roc_auc_score(member, sure[which].ravel())), float(roc_auc_score(member, scores.ravel())),
        f"{100 * caught:.1f}", f"{100 * right[which][inside].mean():.1f}", f"{100 * right[which][~inside].mean():.1f}",
        len(member),
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    columns = (
        "method", "model", "defence", "loss_auc", "shadow_auc", "tpr_at_1_fpr_percent", "train_percent",
        "held_out_percent", "decisions",
    )  # fmt: skip
    most = int(sys.argv[2]) if len(sys.argv) > 2 else len(PLAN)
    fill(Path(sys.argv[1]), columns, PLAN, measure, most, "seeds 0 to 8")
