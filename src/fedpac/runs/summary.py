"""One run's result in a few numbers: what summary.json holds."""

from typing import Any

import numpy as np

from fedpac.runs.read import SPLITS, Floats, RunData


def over_clients(accuracies: Floats, sizes: Floats) -> dict[str, float]:
    """Mean and spread over clients. The plain mean counts every client equally, as the paper does.

    Where some have no accuracy, `clients` says how many have.
    """
    there = ~np.isnan(accuracies)
    accuracies, sizes = accuracies[there], sizes[there]
    values = np.sort(accuracies)
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "worst_decile": float(values[: max(1, len(values) // 10)].mean()),
        "weighted_mean": float(np.average(accuracies, weights=sizes)) if sizes.any() else float(values.mean()),
        **({} if there.all() else {"clients": int(there.sum())}),
    }


def summarise(run: RunData) -> dict[str, Any]:
    results: dict[str, Any] = {
        which: {
            when: {"round": (t := run.evaluated_round(which, when)), **over_clients(run.accuracy[which][t], run.sizes)}
            for when in ("final", "best")
        }
        if run.accuracy[which]
        else None  # not measured
        for which in SPLITS
    }
    return {
        "method": run.method,
        "title": run.title,
        "dataset": run.dataset,
        "scenario": run.scenario,
        "note": run.note,
        "clients": len(run.sizes),
        "rounds": run.last_round,
        "seed": run.seed,
        "reported": run.reported,
        **results,
        "seconds": round(run.seconds, 3),
        "bytes_down": run.bytes_down,
        "bytes_up": run.bytes_up,
    }
