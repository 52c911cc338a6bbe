"""The paper's contribution as pure functions: feature statistics, combination weights, centroids, Theorem 1."""

from fedpac.collaboration.centroids import Centroids, alignment_targets, global_centroids, local_centroids
from fedpac.collaboration.simplex_qp import kkt_residual, solve_simplex_qps
from fedpac.collaboration.statistics import FeatureStatistics, feature_statistics, global_mean
from fedpac.collaboration.weights import combination_weights, newcomer_weights

__all__ = [
    "Centroids",
    "FeatureStatistics",
    "alignment_targets",
    "combination_weights",
    "feature_statistics",
    "global_centroids",
    "global_mean",
    "kkt_residual",
    "local_centroids",
    "newcomer_weights",
    "solve_simplex_qps",
]
