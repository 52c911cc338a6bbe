"""Who is better off with a method than alone, site by site, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from fedpac.methods.base import Which
from fedpac.runs.run_data import Floats, RunData

Verdict: TypeAlias = Literal["gains", "loses", "open", "unknown"]  # open: too close to call
Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True, eq=False)
class Gains:
    """Accuracy with the method minus accuracy alone, for every site, with 95 % intervals."""

    seeds: list[int]  # those that both have
    difference: Floats
    low: Floats
    high: Floats

    @property
    def verdicts(self) -> list[Verdict]:
        return [
            "gains" if low > 0 else "loses" if high < 0 else "open" if low <= high else "unknown"
            for low, high in zip(self.low.tolist(), self.high.tolist(), strict=True)
        ]

    def count(self, verdict: Verdict) -> int:
        return self.verdicts.count(verdict)


def gains(method: Sequence[RunData], alone: Sequence[RunData], which: Which) -> Gains | None:
    """None where no seed has both. `which` is the method's; a site alone has what its run reports.

    The models were scored on the same held-out samples, but which samples each got right is not recorded. The interval
    (Newcombe's, from Wilson's) treats them as independent, which makes it too wide rather than too narrow.
    """
    ours = {run.seed: run for run in method if run.accuracy[which]}
    theirs = {run.seed: run for run in alone}
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    p = np.mean([final_accuracy(ours[seed], which) for seed in seeds], axis=0)  # NaN for a site without a result
    q = np.mean([final_accuracy(theirs[seed], theirs[seed].shown) for seed in seeds], axis=0)
    chosen = [ours[seed] for seed in seeds]
    samples = [run.test_sizes for run in (chosen if other_samples(chosen) else chosen[:1])]
    n = np.maximum(np.sum(samples, axis=0), 1.0)
    return Gains(seeds, p - q, *newcombe(p, n, q, n))


def final_accuracy(run: RunData, which: Which) -> Floats:
    return run.accuracy[which][run.evaluated_round(which, "final")]


def other_samples(runs: Sequence[RunData]) -> bool:
    """Whether each seed deals out samples of its own; sites with data of their own have the same for every seed."""
    return not (runs[0].federated or runs[0].config["data"]["scenario"] == "natural")


def newcombe(p: Floats, n: Floats, q: Floats, m: Floats) -> tuple[Floats, Floats]:
    """A 95 % interval of p - q, shares of n and of m samples (Newcombe 1998, method 10)."""
    (low_p, high_p), (low_q, high_q) = wilson(p, n), wilson(q, m)
    return (
        p - q - np.sqrt((p - low_p) ** 2 + (high_q - q) ** 2),
        p - q + np.sqrt((high_p - p) ** 2 + (q - low_q) ** 2),
    )


def wilson(share: Floats, n: Floats) -> tuple[Floats, Floats]:
    """Wilson's 95 % interval of a share of n samples."""
    middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * np.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return middle - half, middle + half
