"""Feature centroids: class means of one client (eq. local_proto) and of all clients (eq. c).

A class without samples has count 0 and a zero centroid; `present` tells it from a real one. It adds nothing to a sum,
whatever its centroid holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpac.collaboration.statistics import class_means
from fedpac.timing import span


@dataclass(frozen=True, eq=False)
class Centroids:
    counts: Tensor  # (K)     samples behind each centroid
    means: Tensor  #  (K, d)  zero where there are none

    @property
    def present(self) -> Tensor:
        """Which classes have a centroid (K, bool)."""
        return self.counts > 0

    def to_tensors(self) -> dict[str, Tensor]:
        """Plain named tensors, for a message."""
        return {"counts": self.counts, "means": self.means}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Centroids":
        return cls(tensors["counts"], tensors["means"])


@span("statistics")
def local_centroids(features: Tensor, labels: Tensor, classes: int) -> Centroids:
    """ĉ_{i,k}, eq. local_proto: the mean feature of every class; added up in float64, kept in the features' dtype."""
    counts, means = class_means(features.flatten(1), labels, classes)
    return Centroids(counts.to(features.device), means.to(features))


def global_centroids(clients: Sequence[Centroids]) -> Centroids:
    """c_k = Σ_i n_{i,k} ĉ_{i,k} / Σ_i n_{i,k}, eq. c: the mean over all samples of class k, wherever they are."""
    counts = torch.stack([c.counts for c in clients])
    means = torch.stack([c.means for c in clients])
    sums = torch.where(counts.unsqueeze(2) > 0, counts.unsqueeze(2) * means.double(), 0.0).sum(0)
    total = counts.sum(0)
    return Centroids(total, (sums / total.clamp(min=1).unsqueeze(1)).to(means.dtype))


def shares_of_sums(own: Centroids) -> Tensor:
    """n_{i,k} ĉ_{i,k} / n_i (K, d), of which eq. c needs a weighted sum only: so the server need not read it."""
    n = own.counts.sum().clamp(min=1)
    return own.means * (own.counts / n).unsqueeze(1).to(own.means)


def centroids_of_sums(sums: Tensor, shares: Tensor) -> Centroids:
    """The global centroids from Σ_i n_i/n of the above (K, d) and every class's share of all samples (K)."""
    means = torch.where(shares.unsqueeze(1) > 0, sums.double() / shares.clamp(min=1e-12).unsqueeze(1), 0.0)
    return Centroids((shares > 0).long(), means.to(sums.dtype))


def alignment_targets(shared: Centroids, own: Centroids) -> Tensor:
    """What c_y in eq. local_reg_f is for one client (K, d): the global centroid where there is one, else its own."""
    return torch.where(shared.present.unsqueeze(1), shared.means, own.means)


def renewed(last: Centroids, new: Centroids) -> Centroids:
    """The new centroids; a class that nobody had this round keeps its last one."""
    return Centroids(torch.where(new.present, new.counts, last.counts), alignment_targets(new, last))
