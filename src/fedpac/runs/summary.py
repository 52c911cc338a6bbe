"""One run's result in a few numbers: what summary.json holds."""

from typing import Any

import numpy as np

from fedpac.methods.base import Which
from fedpac.metrics import CONFUSION, METRICS, RELIABILITY, confusion_matrix
from fedpac.runs.calibration import pooled, reliability
from fedpac.runs.run_data import SPLITS, Floats, RunData, When


def over_clients(values: Floats, sizes: Floats, higher: bool = True) -> dict[str, float]:
    """Mean and spread over clients. The plain mean counts every client equally, as the paper does.

    Where some have no value (NaN), `clients` says how many have.
    higher   whether more is better: the worst tenth is that with the least, or with the most
    """
    there = ~np.isnan(values)
    values, sizes = values[there], sizes[there]
    ordered = np.sort(values) if higher else -np.sort(-values)
    return {
        "mean": float(ordered.mean()),
        "std": float(ordered.std()),
        "worst_decile": float(ordered[: max(1, len(ordered) // 10)].mean()),
        "weighted_mean": float(np.average(values, weights=sizes)) if sizes.any() else float(ordered.mean()),
        **({} if there.all() else {"clients": int(there.sum())}),
    }


def stage(run: RunData, which: Which, when: When) -> dict[str, Any]:
    """The accuracy of the final round, of the one that validation data chose, or of the best on test data."""
    t = run.evaluated_round(which, when)
    result: dict[str, Any] = {"round": t, **over_clients(run.accuracy[which][t], run.sizes)}
    if when == "selected" and (selection := run.selection(which)) is not None:
        result |= {"by": selection.key, "value": selection.seen[t]}
    return result


def stage_scores(run: RunData, which: Which, when: When) -> dict[str, Any]:
    """Part -> metric -> over clients, of what else was measured in that round. Counts are summed over clients."""
    t = run.evaluated_round(which, when)
    found: dict[str, dict[str, Any]] = {}
    counts: dict[str, dict[str, float]] = {}
    for (split, part, metric), rounds in run.scores.items():
        values = rounds.get(t, {})
        if split != which or not values:
            continue
        if metric.startswith(CONFUSION):
            counts.setdefault(part, {})[metric] = sum(values.values())
        elif metric in METRICS:
            each = np.array([values.get(i, np.nan) for i in range(len(run.sizes))])
            found.setdefault(part, {})[metric] = over_clients(each, run.sizes, METRICS[metric].higher)
    for part, pairs in counts.items():
        found.setdefault(part, {})[CONFUSION] = confusion_matrix(pairs, run.class_counts.shape[1]).tolist()
    for part in ("test", "validation"):
        if bins := reliability(run, which, part, t):
            found.setdefault(part, {})[RELIABILITY] = pooled(bins)
    return found


def summarise(run: RunData) -> dict[str, Any]:
    results: dict[str, Any] = dict.fromkeys(SPLITS)  # not measured
    results |= {which: {when: stage(run, which, when) for when in run.stages(which)} for which in run.splits}
    more: dict[str, Any] = {}
    if run.scores:
        more["scores"] = {
            which: {when: stage_scores(run, which, when) for when in run.stages(which) if when != "best"}
            for which in run.splits
        }
    if run.config["run"].get("patience") is not None:
        more["stopped_early"] = run.last_round < run.wanted_rounds
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
        **({} if run.metric == "accuracy" else {"metric": run.metric}),
        **results,
        **more,
        "seconds": round(run.seconds, 3),
        "bytes_down": run.bytes_down,
        "bytes_up": run.bytes_up,
    }
