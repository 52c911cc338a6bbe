"""FedPAC on the very images and from the very network that the authors' public code starts with, on CIFAR-10.

    python studies/authors_split.py augmented > results/authors-split-augmented.csv
    python studies/authors_split.py plain > results/authors-split-plain.csv

The public code draws nothing by lot when it deals CIFAR-10: each class's images, in the order in which NumPy's sort
leaves them, are handed out one after the other, from the 2,000th (test images: from the 500th) on. Its network is
initialised with seed 520. What is left to chance are batches and crops, which differ here. `augmented` takes
statistics, head and centroids from cropped and flipped images, as that code does; `plain` is this project's default.
"""

import os

# before NumPy is loaded: since 1.25 it sorts with wide vectors, which leaves equal labels in another order
os.environ["NPY_DISABLE_CPU_FEATURES"] = "X86_V3 X86_V4"

import hashlib
import sys

import numpy as np
import torch
from numpy.typing import NDArray

from fedpac.api import fit
from fedpac.data import datasets
from fedpac.data.clients import ClientData, Pool, Samples, Scenario
from fedpac.data.partition import dominant_sets
from fedpac.models import paper_cnn
from fedpac.provenance import provenance
from fedpac.rounds import RoundReport

CLIENTS, CLASSES, GROUPS = 20, 10, 5
SEED = 520
ROUNDS = 200
ORDERS = {"b72d5984991f4d7b297bcf5a687b3c0e", "c4be244de2a3e4250379dbd52549f872"}  # of training and test images


def dealt(y: NDArray[np.int64], each: int, first: int) -> list[NDArray[np.int64]]:
    """Every client's images: a fifth of `each` evenly over the classes, the rest from its group's three."""
    order = np.argsort(y)
    if hashlib.md5(order.tobytes()).hexdigest() not in ORDERS:
        raise SystemExit("this NumPy sorts CIFAR-10's labels in another order than NumPy 1.24 did")
    decks = order.reshape(CLASSES, -1)
    used = [first] * CLASSES

    def take(k: int, number: int) -> NDArray[np.int64]:
        if used[k] + number > decks.shape[1]:
            used[k] = 0
        used[k] += number
        return decks[k, used[k] - number : used[k]]

    everywhere = each // 5 // CLASSES
    hands = []
    for i in range(CLIENTS):
        favoured = dominant_sets(CLASSES, GROUPS)[i % GROUPS]
        hand = [take(k, everywhere) for k in range(CLASSES)]
        hand += [take(k, (each - each // 5) // len(favoured)) for k in favoured]
        hands.append(np.concatenate(hand))
    return hands


def authors_scenario() -> Scenario:
    data = datasets.load("cifar10")

    def parts(pool: Pool, each: int, first: int) -> list[Samples]:
        return [Samples(pool, torch.from_numpy(hand)) for hand in dealt(pool.y.numpy(), each, first)]

    pairs = zip(parts(data.train, 600, 2000), parts(data.test, 300, 500), strict=True)
    clients = [ClientData(train, test, True, i % GROUPS, f"client {i}") for i, (train, test) in enumerate(pairs)]
    return Scenario(clients, CLASSES, (3, 32, 32), "cifar10 as the authors deal it", data.note)


def main() -> None:
    augmented = {"augmented": True, "plain": False}[sys.argv[1]]
    torch.manual_seed(SEED)
    model = paper_cnn((3, 32, 32), CLASSES)
    about = provenance()
    print(f"# {about['command']}; commit {about['commit']}; torch {about['versions']['torch']}; {about['kernels']}")
    print("round,received,personal", flush=True)

    def show(report: RoundReport) -> None:
        if report.scores:
            received, personal = (100 * np.mean(report.accuracies(which)) for which in ("received", "personal"))
            print(f"{report.round},{received:.4f},{personal:.4f}", flush=True)

    fit(
        model, authors_scenario(), "fedpac", settings={"augmented": augmented}, rounds=ROUNDS, lr=0.02, seed=SEED,
        evaluate_every=5, workers=1, callbacks=[show],
    )  # fmt: skip


if __name__ == "__main__":
    main()
