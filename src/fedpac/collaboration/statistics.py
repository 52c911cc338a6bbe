"""What a client tells about its features so that the server can weigh classifiers (paper section 5, appendix A.3).

A client sends the class counts n_k, the class means μ_k and its scatter W, the covariance around the class means
(or only tr W). Everything the paper asks for follows from these three, as sums of terms that cannot be negative:

    h_k = p_k μ_k                         Λ = W + Σ_k p_k μ_k μ_k'
    V   = tr Λ - Σ_k |h_k|²  =  tr W + Σ_k p_k (1 - p_k) |μ_k|²

The second form of V has no cancellation, and W does not change when all features are moved by a constant. So the server
can zero-centre (Assumption 2) afterwards, exactly: it subtracts the global mean from the class means, and is done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpac.errors import DataError
from fedpac.timing import span


def class_sums(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Row k holds the sum of the values labelled k: added up in sample order, whatever the number of threads."""
    return values.new_zeros(classes, *values.shape[1:]).index_add_(0, labels, values)


def class_means(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Counts n_k (K) and mean features μ_k (K, d) of every class, in float64; zero for a class without samples."""
    z, y = features.detach().cpu().double(), labels.cpu().long()
    if z.ndim != 2 or y.shape != z.shape[:1]:
        raise DataError(f"expected features (n, d) and labels (n), got {tuple(z.shape)} and {tuple(y.shape)}")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise DataError(f"labels must lie in 0..{classes - 1}, got {int(y.min())}..{int(y.max())}")
    counts = torch.bincount(y, minlength=classes)
    return counts, class_sums(z, y, classes) / counts.clamp(min=1).unsqueeze(1)


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """One client's features in brief: float64 throughout, the classes in rows."""

    counts: Tensor  # (K)      n_k
    means: Tensor  #  (K, d)   μ_k, zero for a class without samples
    scatter: Tensor  # ()      tr W, the mean squared distance to the own class mean; or (d, d): W itself

    @property
    def n(self) -> float:
        return float(self.counts.sum())

    @property
    def p(self) -> Tensor:
        """Class frequencies P(y)."""
        return self.counts.double() / self.n

    @property
    def h(self) -> Tensor:
        """h(y) = P(y) E[f | y], the last line before eq. hytg; (K, d)."""
        return self.p.unsqueeze(1) * self.means

    @property
    def mean(self) -> Tensor:
        """E[f], the mean feature of the client (d)."""
        return self.h.sum(0)

    @property
    def V(self) -> float:  # noqa: N802
        """The variance of eq. hytg1 (identity covariance): tr Λ - Σ_k |h_k|², not divided by n."""
        within = self.scatter if self.scatter.ndim == 0 else self.scatter.trace()
        return float(within + (self.p * (1 - self.p)) @ self.means.square().sum(1))

    @property
    def second_moment(self) -> Tensor:
        """Λ = E[f f'] (d, d)."""
        if self.scatter.ndim == 0:
            raise DataError("these statistics hold no second moment: ask for feature_statistics(..., covariance=True)")
        return self.scatter + self.h.T @ self.means

    def centred(self, origin: Tensor) -> "FeatureStatistics":
        """The statistics of f - origin, exactly (Assumption 2 with origin = global_mean)."""
        present = (self.counts > 0).unsqueeze(1)
        return FeatureStatistics(self.counts, torch.where(present, self.means - origin, 0.0), self.scatter)

    def whitened(self, root: Tensor, inverse: Tensor) -> "FeatureStatistics":
        """The statistics of root'f, where root root' = inverse = Λ⁻¹; their V and h are those of eq. hytg and djj."""
        return FeatureStatistics(self.counts, self.means @ root, (inverse * self.scatter).sum())

    def to_tensors(self) -> dict[str, Tensor]:
        """Plain named tensors, for a message."""
        return {"counts": self.counts, "means": self.means, "scatter": self.scatter}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "FeatureStatistics":
        return cls(tensors["counts"], tensors["means"].double(), tensors["scatter"].double())


@span("statistics")
def feature_statistics(features: Tensor, labels: Tensor, classes: int, covariance: bool = False) -> FeatureStatistics:
    """The statistics of features (n, d) with labels (n) in 0..classes-1; `covariance` keeps all of W, not only tr W."""
    if not len(features):
        raise DataError("a client without samples has no feature statistics")
    features = features.flatten(1)
    counts, means = class_means(features, labels, classes)
    y = labels.cpu().long()
    residuals = features.detach().cpu().double() - means[y]
    if covariance:
        return FeatureStatistics(counts, means, residuals.T @ residuals / len(y))
    return FeatureStatistics(counts, means, class_sums(residuals.square().sum(1), y, classes).sum() / len(y))


def global_mean(statistics: Sequence[FeatureStatistics]) -> Tensor:
    """The mean feature over all samples of all clients (d)."""
    total = torch.stack([s.n * s.mean for s in statistics]).sum(0)
    return total / sum(s.n for s in statistics)
