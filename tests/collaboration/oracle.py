"""The paper's formulas transcribed word by word, in loops over samples, classes and clients: slow and plain to see.

A client is a pair of arrays (features (n, d), labels (n)). Beside them, clients to try things on.
"""

import numpy as np
import torch

from fedpac.collaboration import FeatureStatistics, feature_statistics

Client = tuple[np.ndarray, np.ndarray]


def label_frequency(client: Client, y: int) -> float:
    return sum(1 for label in client[1] if label == y) / len(client[1])


def class_mean(client: Client, y: int) -> np.ndarray:
    """μ_{i,y} of appendix A.3."""
    z, labels = client
    total, count = np.zeros(z.shape[1]), 0
    for feature, label in zip(z, labels, strict=True):
        if label == y:
            total, count = total + feature, count + 1
    return total / count if count else total


def class_second_moment(client: Client, y: int) -> np.ndarray:
    """Λ_{i,y} of appendix A.3."""
    z, labels = client
    total, count = np.zeros((z.shape[1], z.shape[1])), 0
    for feature, label in zip(z, labels, strict=True):
        if label == y:
            total, count = total + np.outer(feature, feature), count + 1
    return total / count if count else total


def second_moment(client: Client) -> np.ndarray:
    return np.sum([np.outer(feature, feature) for feature in client[0]], axis=0) / len(client[0])


def h(client: Client, y: int) -> np.ndarray:
    return label_frequency(client, y) * class_mean(client, y)


def variance(client: Client, K: int, inverse: np.ndarray) -> float:
    """V_j, eq. hytg; eq. hytg1 where the inverse is the identity."""
    total = 0.0
    for y in range(K):
        total += label_frequency(client, y) * np.trace(inverse @ class_second_moment(client, y))
        total -= h(client, y) @ inverse @ h(client, y)
    return total


def bias(i: int, clients: list[Client], K: int, inverse: np.ndarray) -> np.ndarray:
    """D_jj', eq. djj: the traces of d x d products."""
    D = np.zeros((len(clients), len(clients)))
    for j, one in enumerate(clients):
        for k, other in enumerate(clients):
            for y in range(K):
                D[j, k] += np.trace(inverse @ np.outer(h(clients[i], y) - h(one, y), h(clients[i], y) - h(other, y)))
    return D


def make_clients(sizes: list[int], K: int = 4, d: int = 3, seed: int = 0, shift: float = 0.5) -> list[Client]:
    """Clients with random label mixes; the last class is nobody's."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(K, d))
    clients = []
    for n in sizes:
        labels = rng.choice(K - 1, size=n, p=rng.dirichlet(np.ones(K - 1)))
        clients.append((centres[labels] + rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + shift, labels))
    return clients


def statistics_of(client: Client, K: int = 4, covariance: bool = True) -> FeatureStatistics:
    return feature_statistics(torch.tensor(client[0]), torch.tensor(client[1]), K, covariance)
