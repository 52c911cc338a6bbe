"""Feature centroids: class means of one client (eq. local_proto) and of all clients (eq. c).

A class without samples has count 0 and a zero centroid; `present` tells it from a real one. It adds nothing to a sum,
whatever its centroid holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpac import robust
from fedpac.collaboration.statistics import class_means
from fedpac.timing import span

RARE = 1e-5  # a class with a smaller share of all samples counts as absent where there are only sums


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
    """c_k = Σ_i n_{i,k} ĉ_{i,k} / Σ_i n_{i,k}, eq. c: the mean over all samples of class k, wherever they are; or what
    the server's robust rule puts in its place."""
    counts = torch.stack([c.counts for c in clients])
    means = torch.stack([c.means for c in clients])
    total = counts.sum(0)
    if (rule := robust.current()) is not None:
        rows = [_robust_centroid(rule, counts[:, k], means[:, k]) for k in range(len(total))]
        return Centroids(total, torch.stack(rows).to(means.dtype))
    sums = torch.where(counts.unsqueeze(2) > 0, counts.unsqueeze(2) * means.double(), 0.0).sum(0)
    return Centroids(total, (sums / total.clamp(min=1).unsqueeze(1)).to(means.dtype))


def _robust_centroid(rule: robust.Rule, counts: Tensor, means: Tensor) -> Tensor:
    """Of one class. Among two nobody can tell who lies: the shorter one, which does less harm."""
    owners = counts.nonzero().flatten().tolist()
    known = [{"mean": means[i].double()} for i in owners]
    if len(known) > 2:
        return rule.average(known, [float(counts[i] / counts.sum()) for i in owners])["mean"]
    return min((own["mean"] for own in known), key=lambda mean: float(mean.norm()), default=torch.zeros_like(means[0]))


def shares_of_sums(own: Centroids) -> dict[str, Tensor]:
    """n_{i,k} / n_i ĉ_{i,k} (K, d) and n_{i,k} / n_i (K): eq. c needs weighted sums of them only, so the server need
    not read them."""
    shares = (own.counts / own.counts.sum().clamp(min=1)).to(own.means)
    return {"sums": own.means * shares.unsqueeze(1), "shares": shares}


def centroids_of_sums(sums: Tensor, shares: Tensor) -> Centroids:
    """The global centroids from Σ_i n_i/n of the above. Sums that were encrypted are not zero to the last digit, where
    nobody had the class."""
    present = shares > RARE
    means = torch.where(present.unsqueeze(1), sums.double() / shares.double().clamp(min=RARE).unsqueeze(1), 0.0)
    return Centroids(present.long(), means.to(sums.dtype))


def alignment_targets(shared: Centroids, own: Centroids) -> Tensor:
    """What c_y in eq. local_reg_f is for one client (K, d): the global centroid where there is one, else its own."""
    return torch.where(shared.present.unsqueeze(1), shared.means, own.means)


def renewed(last: Centroids, new: Centroids) -> Centroids:
    """The new centroids; a class that nobody had this round keeps its last one."""
    return Centroids(torch.where(new.present, new.counts, last.counts), alignment_targets(new, last))
