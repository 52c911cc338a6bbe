"""What came out, in sentences for somebody who has a minute and no interest in methods."""

from collections.abc import Sequence

import numpy as np

from fedpac.report.web.gains import Gains
from fedpac.report.web.settings import ALONE, Experiment, Setting
from fedpac.runs.run_data import RunData

LONGEST = 1_000  # characters of what a folder states


def summary(setting: Setting) -> list[str]:
    """One paragraph, sentence by sentence."""
    first, chosen = setting.first, headline(setting)
    where = (
        "Their data never left the sites; only models and statistics were exchanged."
        if first.federated
        else "This was a simulation: one machine held all sites' data, but each site trained on its own data only."
    )
    said = [f"{count(len(first.sizes), 'site')} took part ({first.scenario}). {where}"]
    if first.note:
        said.append(
            f"The data are not the published ones ({first.note}), so do not compare these numbers with published ones."
        )
    judged = first.headline
    what = " of a site's held-out samples right" if first.metric == "accuracy" else " on a site's held-out samples"
    prefix = "" if first.metric == "accuracy" else f"an {judged.title} of "
    accuracy = f"{prefix}{judged.with_unit(mean_of(chosen), 1)}{what}, on average over all sites"
    alone = setting.alone
    if chosen.method == ALONE:
        said.append(f"Each site trained alone and gets {accuracy}.")
    else:
        best = f", the best of {len(setting.experiments)} here," if len(setting.experiments) > 2 else ""
        said.append(f"With {chosen.name}{best} a model gets {accuracy}{_seeds(chosen)}.")
    if alone is not None and chosen is not alone:
        said.append(f"A site that trains alone gets {judged.with_unit(mean_of(alone), 1)}.")
        if (compared := setting.gains(chosen)) is not None:
            said += verdict(compared, first.names)
    elif alone is None:
        said.append("This page has no Local-only run, so it cannot say who is better off than alone.")
    said += _cost(chosen)
    if promised := privacy(chosen.first):
        said.append(f"Privacy: {promised}.")
    if behind := [e.name for e in setting.experiments if not all(run.finished for run in e.runs)]:
        said.append(f"Not finished: {listed(behind)}.")
    return said


def headline(setting: Setting) -> Experiment:
    """The method that the first paragraph is about: of those that are finished, the one with the highest accuracy."""
    together = [e for e in setting.experiments if e.method != ALONE] or setting.experiments
    done = [e for e in together if all(run.finished for run in e.runs)]
    return max(done or together, key=mean_of)


def verdict(found: Gains, names: Sequence[str]) -> list[str]:
    gained, lost, open_ = (found.count(verdict) for verdict in ("gains", "loses", "open"))
    total, points = gained + lost + open_, 100 * found.difference
    said = [
        f"{gained} of {count(total, 'site')} gain from taking part, {lost or 'none'} "
        f"{'loses' if lost < 2 else 'lose'}, and {open_ or 'none'} {'is' if open_ < 2 else 'are'} too close to call."
    ]
    if total < 2:
        return said
    best, worst = int(np.nanargmax(points)), int(np.nanargmin(points))
    ends = f"{points[best]:+.1f} points for {names[best]} at one end and {points[worst]:+.1f} for {names[worst]}"
    return [*said, f"The difference is {ends} at the other."]


def _seeds(experiment: Experiment) -> str:
    if len(experiment.runs) == 1:
        return " (one seed)"
    means = [mean_accuracy(run) for run in experiment.runs]
    return f" (± {experiment.first.headline.show(float(np.std(means, ddof=1)), 1)} over {len(means)} seeds)"


def _cost(experiment: Experiment) -> list[str]:
    runs = experiment.runs
    up, down, seconds = (
        float(np.mean([getattr(run, key) for run in runs])) for key in ("bytes_up", "bytes_down", "seconds")
    )
    if not up + down:
        return [f"Nothing was sent; {count(experiment.first.last_round, 'round')} took {duration(seconds)}."]
    each = (up + down) / max(1, len(experiment.first.sizes))
    return [
        f"In {count(experiment.first.last_round, 'round')} a site exchanged {size(each)} with the server on average; "
        f"the rounds took {duration(seconds)}."
    ]


def privacy(run: RunData) -> str:
    """The guarantee, wherever epsilon is named; empty where nothing was promised."""
    stated, said = run.privacy, []
    if "guarantee" in stated:
        epsilon = stated.get("epsilon")
        spent = f"epsilon = {epsilon:.3g}" if isinstance(epsilon, int | float) else "epsilon is infinite"
        said.append(f"{spent} for delta = {stated.get('delta')}: {stated['guarantee']}")
    if "encryption" in stated:
        said.append(f"encrypted: {stated['encryption']}")
    return "; ".join(said)[:LONGEST]


def mean_of(experiment: Experiment) -> float:
    return float(np.mean([mean_accuracy(run) for run in experiment.runs]))


def mean_accuracy(run: RunData) -> float:
    return run.means[run.shown][run.evaluated_round(run.shown, "final")]


# --- numbers as people read them ----------------------------------------------------------------------------------


def count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def size(bytes_: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_ >= factor:
            return f"{bytes_ / factor:.3g} {unit}"
    return f"{bytes_:.0f} bytes"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
