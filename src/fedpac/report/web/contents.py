"""What the page shows, as plain values for JSON. Texts come from run folders, and must not be trusted by who draws."""

import base64
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpac.methods.base import Which
from fedpac.metrics import METRICS, OF_CLASSES
from fedpac.report.bubbles import drawn_of
from fedpac.report.shown import by_group, curve_of
from fedpac.report.style import COLOURS, MARKERS, looks
from fedpac.report.web import words
from fedpac.report.web.gains import final_accuracy, gains, other_samples
from fedpac.report.web.settings import ALONE, Experiment, Setting, settings_of
from fedpac.runs.calibration import reliability
from fedpac.runs.run_data import SPLITS, Floats, RunData
from fedpac.runs.summary import over_clients
from fedpac.version import __version__

WEIGHT_BYTES = 400_000  # of all weights on the page; rounds are left out evenly where there are more
CURVE_BYTES = 700_000  # of all sites' curves
CURVE_SITES = 100  # of more sites, only the mean has a curve
BIN_BYTES = 300_000  # of all sites' reliability; where there is more, only that of all sites together is shown
FAILURES = 200  # the last ones, of each experiment
NO_RESULT = 65_535  # of a site in a round
LEAST = -5.0  # R² of a site's curve: below it, how far does not matter
LONGEST = 4_000  # characters of a text


def contents(runs: Sequence[RunData]) -> dict[str, Any]:
    """All settings with all that was run on them."""
    settings = settings_of(runs)
    matrices = sum(bool(run.peer_weights) for run in runs)
    curves = sum(len(e.first.sizes) <= CURVE_SITES for s in settings for e in s.experiments)
    shown = max(1, sum(len(s.experiments) for s in settings))
    room = Room(WEIGHT_BYTES // max(1, matrices), CURVE_BYTES // max(1, 2 * curves), BIN_BYTES // (2 * shown))
    metrics = {name: metric.about for name, metric in (METRICS | OF_CLASSES).items()}
    return {
        "version": __version__,
        "metrics": metrics,
        "settings": [clean(_setting(setting, room)) for setting in settings],
    }


class Room:
    """Bytes that one run's weights, one experiment's curves of sites and its bins of confidence may take."""

    def __init__(self, weights: int, curves: int, bins: int) -> None:
        self.weights, self.curves, self.bins = weights, curves, bins


def _setting(setting: Setting, room: Room) -> dict[str, Any]:
    first = setting.first
    drawn = set(drawn_of(len(first.sizes), first.groups))
    main_first = sorted(setting.experiments, key=lambda e: -len(e.runs))  # of a method's variants, one has its colour
    looked = zip(main_first, looks([e.method for e in main_first]), strict=True)
    look = {e.name: {"colour": COLOURS.index(c), "marker": MARKERS.index(m)} for e, (c, m) in looked}
    return {
        "title": setting.title,
        "note": first.note,
        "measure": _measure(first),
        "words": words.summary(setting),
        "headline": setting.experiments.index(words.headline(setting)),
        "alone": None if setting.alone is None else setting.experiments.index(setting.alone),
        "sites": [
            {"name": name, "group": first.groups[i], "train": first.sizes[i], "test": first.test_sizes[i]}
            for i, name in enumerate(first.names)
        ],
        "held": first.class_counts.tolist(),
        "drawn": [i for i in by_group(first) if i in drawn],
        "samples": "other" if other_samples([first]) else "same",
        "experiments": [{**_experiment(setting, e, room), **look[e.name]} for e in setting.experiments],
    }


def _measure(run: RunData) -> dict[str, Any]:
    """What models are judged by, and how it is written."""
    shown = run.headline
    return {
        "name": run.metric, "title": shown.title, "label": shown.label, "unit": shown.unit, "factor": shown.factor,
        "decimals": shown.decimals, "least": max(shown.factor * shown.least, -1e9),
    }  # fmt: skip


def _experiment(setting: Setting, experiment: Experiment, room: Room) -> dict[str, Any]:
    first, runs = experiment.first, experiment.runs
    return {
        "name": experiment.name,
        "method": experiment.method,
        "reported": first.shown,
        "seeds": [run.seed for run in runs],
        "rounds": min(run.last_round for run in runs),
        "wanted": first.wanted_rounds,
        "final": {which: _final(runs, which) for which in SPLITS},
        "curves": {which: _curve(runs, which, room.curves) for which in SPLITS},
        "gains": {which: _gains(setting, experiment, which) for which in SPLITS},
        "scores": _scores(runs),
        "reliability": {which: _reliability(runs, which, room.bins) for which in SPLITS},
        "weights": [_weights(run, room.weights) for run in runs if run.peer_weights],
        "cost": _cost(runs),
        "failures": [failure for run in runs for failure in _failures(run)],
        "runs": [_origin(run) for run in runs],
    }


# --- accuracy -----------------------------------------------------------------------------------------------------


def same_sites(runs: Sequence[RunData]) -> Sequence[RunData]:
    """Seeds in which site i is the same kind of site; the first alone where the seed deals out other classes."""
    alike = all(np.array_equal(run.class_counts, runs[0].class_counts) for run in runs)
    return runs if alike else runs[:1]


def _final(runs: Sequence[RunData], which: Which) -> dict[str, Any] | None:
    """Spread over seeds where there are several; else over sites. None if it was not measured."""
    if not (runs := [run for run in runs if run.accuracy[which]]):
        return None
    finals = [final_accuracy(run, which) for run in runs]
    over = [over_clients(final, run.sizes) for final, run in zip(finals, runs, strict=True)]
    means = [values["mean"] for values in over]
    best = [float(run.means[which][run.evaluated_round(which, "best")]) for run in runs]
    return {
        "mean": np.mean(means),
        "spread": np.std(means, ddof=1) if len(runs) > 1 else over[0]["std"],
        "over": "seeds" if len(runs) > 1 else "sites",
        "worst": np.mean([values["worst_decile"] for values in over]),
        "weighted": np.mean([values["weighted_mean"] for values in over]),
        "best": np.mean(best),
        "sites": rounded(np.mean([final_accuracy(run, which) for run in same_sites(runs)], axis=0), 4),
    }


def _curve(runs: Sequence[RunData], which: Which, room: int) -> dict[str, Any] | None:
    if not (runs := [run for run in runs if run.accuracy[which]]):
        return None
    rounds, means, band = curve_of(runs, which, alone=False)
    alike, sites, shown = same_sites(runs), len(runs[0].sizes), runs[0].headline
    digits = 2 + shown.decimals
    curve = {"rounds": rounds, "mean": rounded(means, digits), "band": None if band is None else rounded(band, digits)}
    if sites > CURVE_SITES:
        return {**curve, "of_sites": None}
    kept = evenly(rounds, max(2, room // (3 * sites)))
    each = np.array([np.mean([run.accuracy[which][t] for run in alike], axis=0) for t in kept])
    least = max(shown.least, LEAST)
    steps = 10_000 * (np.clip(each, least, 1) - least)  # hundredths of a per cent
    packed = np.nan_to_num(steps, nan=NO_RESULT).round().astype("<u2")
    scale = {"least": shown.factor * least, "step": shown.factor / 10_000}
    return {**curve, "of_sites": {"rounds": kept, "values": base64.b64encode(packed.tobytes()).decode(), **scale}}


def _gains(setting: Setting, experiment: Experiment, which: Which) -> dict[str, Any] | None:
    if setting.alone is None or experiment.method == ALONE or setting.first.metric != "accuracy":
        return None  # intervals are those of shares of samples
    found = gains(same_sites(experiment.runs), setting.alone.runs, which)
    if found is None:
        return None
    return {
        "seeds": found.seeds,
        "difference": rounded(100 * found.difference, 2),
        "low": rounded(100 * found.low, 2),
        "high": rounded(100 * found.high, 2),
        "verdicts": found.verdicts,
    }


def _scores(runs: Sequence[RunData]) -> dict[str, dict[str, list[float]]]:
    """Metric -> split -> value of every site in the last round, on the test data; what was measured beside accuracy."""
    found: dict[str, dict[str, list[float]]] = {}
    alike = same_sites(runs)
    for which, part, metric in sorted({key for run in alike for key in run.scores}):
        each = [run.scores[which, part, metric] for run in alike if (which, part, metric) in run.scores]
        if part != "test" or metric not in METRICS or metric == runs[0].metric:
            continue
        sites = range(len(runs[0].sizes))
        values = np.array([[rounds[max(rounds)].get(i, np.nan) for i in sites] for rounds in each])
        found.setdefault(metric, {})[which] = rounded(values.mean(axis=0), 4)
    return found


def _reliability(runs: Sequence[RunData], which: Which, room: int) -> dict[str, Any] | None:
    """[bin, samples, mean confidence, accuracy] of all sites together and of each, last round, test data, all seeds."""
    sites: dict[int, Floats] = {}
    for run in same_sites(runs):
        measured = run.accuracy[which] and reliability(run, which, "test", run.evaluated_round(which, "final"))
        for client, bins in (measured or {}).items():
            sites[client] = sites[client] + bins if client in sites else bins
    if not sites:
        return None
    each = {client: _bins(bins) for client, bins in sites.items()}
    fits = 20 * sum(map(len, each.values())) <= room
    return {"all": _bins(np.sum(list(sites.values()), axis=0)), "sites": each if fits else None}


def _bins(bins: Floats) -> list[list[float]]:
    return [
        [at, n, round(confidence / n, 4), round(right / n, 4)]
        for at, (n, confidence, right) in enumerate(bins.tolist())
        if n
    ]


# --- who learned from whom ----------------------------------------------------------------------------------------


def _weights(run: RunData, room: int) -> dict[str, Any]:
    """A byte for each pair of the sites that are drawn, on one scale for all rounds; rows receive."""
    drawn = set(drawn_of(len(run.sizes), run.groups))
    order = [i for i in by_group(run) if i in drawn]
    kept = evenly(sorted(run.peer_weights), max(2, room // (len(order) ** 2 * 4 // 3 + 8)))
    matrices = [np.clip(np.nan_to_num(run.peer_weights.among(order, t)), 0, 1e6) for t in kept]
    top = max(1e-9, *(float(matrix.max()) for matrix in matrices))
    packed = [np.rint(255 * matrix / top).astype(np.uint8) for matrix in matrices]
    return {
        "seed": run.seed,
        "rounds": kept,
        "of": len(run.peer_weights),
        "top": top,
        "sites": order,
        "values": [base64.b64encode(matrix.tobytes()).decode() for matrix in packed],
    }


# --- what it cost, what went wrong, where it comes from -----------------------------------------------------------


def _cost(runs: Sequence[RunData]) -> dict[str, Any]:
    cost = {key: float(np.mean([getattr(run, key) for run in runs])) for key in ("seconds", "bytes_up", "bytes_down")}
    return {**{key: round(value, 1) for key, value in cost.items()}, "privacy": short(words.privacy(runs[0]))}


def _failures(run: RunData) -> list[dict[str, Any]]:
    names = run.names
    return [
        {
            "seed": run.seed,
            "round": f.round,
            "site": names[f.client] if 0 <= f.client < len(names) else f"client {f.client}",
            "cause": f.cause,
            "reason": f.reason[:LONGEST],
        }
        for f in run.failures[-FAILURES:]
    ]


def _origin(run: RunData) -> dict[str, Any]:
    sessions = run.environment.get("sessions")
    sessions = [session for session in sessions if isinstance(session, dict)] if isinstance(sessions, list) else []
    first: dict[str, Any] = sessions[0] if sessions else {}
    versions = first.get("versions")
    return {
        "folder": str(run.path),
        "seed": run.seed,
        "started": short(first.get("started", "")),
        "command": short(first.get("command", "unknown")),
        "commit": short(first.get("commit", "unknown")),
        "versions": {short(k): short(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        "machine": short(first.get("machine", "unknown")),
        "kernels": short(first.get("kernels", "unknown")),
        "sessions": len(sessions),
        "data": short(run.environment.get("data", "")),
        "config": (run.path / "config.toml").read_text(errors="replace"),
        "metrics": hashlib.sha256((run.path / "metrics.csv").read_bytes()).hexdigest(),
    }


# --- plain values -------------------------------------------------------------------------------------------------


def short(value: object) -> str:
    return str(value)[:LONGEST]


def rounded(values: Floats, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]


def evenly(values: Sequence[int], most: int) -> list[int]:
    """All of them, or so many with equal steps between them, the first and the last included."""
    if len(values) <= most:
        return list(values)
    places: NDArray[np.int64] = np.linspace(0, len(values) - 1, most).round().astype(np.int64)
    return [values[at] for at in sorted(set(places.tolist()))]


def clean(value: Any) -> Any:
    """JSON has neither NaN nor infinity; a folder may."""
    if isinstance(value, dict):
        return {str(key): clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [clean(each) for each in value]
    if isinstance(value, float | np.floating):
        number = float(value)
        return None if not math.isfinite(number) else int(number) if number.is_integer() else number
    return value
