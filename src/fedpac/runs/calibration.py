"""How far a model's confidence can be trusted: what a run has recorded of its reliability."""

import numpy as np

from fedpac.errors import RunError
from fedpac.methods.base import Which
from fedpac.metrics import RELIABILITY, SEPARATOR, misfit, reliability_bins
from fedpac.runs.run_data import Floats, RunData


def reliability(run: RunData, which: Which, part: str, round: int) -> dict[int, Floats]:
    """Client -> samples, sum of their confidence, how many are right (columns), by bin of the confidence (rows)."""
    found: dict[int, dict[str, float]] = {}
    for (split, of, metric), rounds in run.scores.items():
        if (split, of) == (which, part) and metric.startswith(f"{RELIABILITY} "):
            for client, value in rounds.get(round, {}).items():
                if wrong := misfit({f"{part}{SEPARATOR}{metric}": value}, [RELIABILITY], run.class_counts.shape[1]):
                    raise RunError(f"{run.path / 'scores.csv'} is damaged: client {client}, round {round}: {wrong}")
                found.setdefault(client, {})[metric] = value
    return {client: reliability_bins(values) for client, values in sorted(found.items())}


def pooled(bins: dict[int, Floats]) -> list[dict[str, float]]:
    """Over all clients: the bins that have samples, lowest confidence first."""
    return [
        {"bin": at, "samples": int(samples), "confidence": confidence / samples, "accuracy": right / samples}
        for at, (samples, confidence, right) in enumerate(np.sum(list(bins.values()), axis=0).tolist())
        if samples
    ]
