"""Theorem 1 and the generalisation gap as code, on finite distributions where both can be computed exactly.

A joint distribution P_XY is an array (X, K), features f an array (X, d), a classifier g an array (K, d). All clients
share the marginal P_X (Assumption 1). The paper's Assumption 2, E[f] = 0, is not needed here: the classifier that
minimises χ² has a term for the mean, zero under the assumption, which cancels from every difference of classifiers.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpac.collaboration.simplex_qp import Array


def chi_square(P: Array, Q: Array, marginal: Array) -> float:
    """χ²_i(P, Q) = Σ_xy (P(x,y) - Q(x,y))² / P_X(x), eq. chi2."""
    return float(((P - Q) ** 2 / marginal[:, None]).sum())


def linear_model(features: Array, classifier: Array) -> Array:
    """Q(y|x) = (1 + f(x)'g(y)) / K, eq. h; (X, K)."""
    return np.asarray((1 + features @ classifier.T) / len(classifier))


def fit_classifier(P: Array, features: Array, marginal: Array) -> Array:
    """ĝ = argmin_g χ²(P, P_X Q(g)), eq. lasd: K Λ⁻¹ Σ_x P(x,y) f(x), less Λ⁻¹ E[f] where Assumption 2 does not hold."""
    second_moment = features.T @ (marginal[:, None] * features)
    target = P.shape[1] * (P.T @ features) - marginal @ features
    return np.linalg.solve(second_moment, target.T).T


@dataclass(frozen=True, eq=False)
class DiscreteFederation:
    """Clients with known distributions; each draws n_j samples, fits ĝ_j, and client i uses Σ_j α_j ĝ_j."""

    joints: Array  #    (m, X, K)  P_XY of every client, all with the same marginal over X
    features: Array  #  (X, d)     f
    sizes: Array  #     (m)        n_j

    @property
    def marginal(self) -> Array:
        """P_X (X)."""
        return np.asarray(self.joints[0].sum(axis=1))

    @property
    def h(self) -> Array:
        """h(j, y) = P_j(y) E_j[f | y] = Σ_x P_j(x,y) f(x); (m, K, d)."""
        return np.asarray(np.einsum("jxy,xd->jyd", self.joints, self.features))

    @property
    def inverse(self) -> Array:
        """Λ⁻¹, with Λ = E[f f'] (d, d)."""
        return np.asarray(np.linalg.inv(self.features.T @ (self.marginal[:, None] * self.features)))

    def bias(self, i: int) -> Array:
        """D_jj' of client i, eq. djj (m, m)."""
        away = self.h[i] - self.h
        return np.asarray(np.einsum("jyd,de,lye->jl", away, self.inverse, away))

    def variance(self) -> Array:
        """V_j, eq. hytg (m). By Assumption 1 it does not depend on i."""
        spread = np.einsum("x,xd,de,xe->", self.marginal, self.features, self.inverse, self.features)
        return np.asarray(spread - np.einsum("jyd,de,jye->j", self.h, self.inverse, self.h))

    def irreducible(self, i: int) -> float:
        """χ²_i(P_i, P_X Q(g_i)), the last term of eq. alpha: what no linear classifier can explain."""
        best = fit_classifier(self.joints[i], self.features, self.marginal)
        return chi_square(self.joints[i], self.marginal[:, None] * linear_model(self.features, best), self.marginal)

    def expected_loss(self, i: int, alpha: Array) -> float:
        """R_i(α), eq. alpha (Theorem 1): bias, variance and what cannot be reduced."""
        bias = alpha @ self.bias(i) @ alpha
        return float(bias + alpha**2 @ (self.variance() / self.sizes)) + self.irreducible(i)


def generalisation_gap(P: Array, P_hat: Array, features: Array, classifier: Array) -> float:
    """ΔR_i = 2/K Σ_xy (P(x,y) - P̂(x,y)) f(x)'g(y), the second term of eq. testloss_1, as printed.

    Working out the squares gives it the other sign: χ²(P, P_X Q(g)) = χ²(P̂, P_X Q(g)) - ΔR_i + a constant without g.
    The paper's method rests on the size of ΔR_i only, which alignment makes small.
    """
    return float(2 * ((P - P_hat) * (features @ classifier.T)).sum() / len(classifier))


def estimated_gap(features: Tensor, labels: Tensor, centroids: Tensor, classifier: Tensor) -> float:
    """ΔR̂_i = 2/(n K) Σ_l (c_{y_l} - f(x_l))'g(y_l), eq. gap-est: from samples (n, d) and global centroids (K, d)."""
    products = torch.einsum("nd,nd->n", (centroids[labels] - features).double(), classifier[labels].double())
    return float(2 * products.mean() / len(classifier))
