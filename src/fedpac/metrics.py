"""What is measured of a model beside accuracy and loss: named numbers, computed where the data are.

A client's site answers with the numbers alone. Where a metric has no value (AUROC of a client with one class) there is
no number, and means are over the clients that have one.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedpac.errors import ConfigError, unknown

Part: TypeAlias = Literal["test", "validation"]  # whose rows were looked at
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

BINS = 15  # of the confidence, for the calibration error and the reliability diagram
CONFUSION = "confusion"  # as numbers: "confusion 2 5" samples of class 2 were taken for class 5
RELIABILITY = "reliability"  # as numbers: "reliability 12 samples", and their mean confidence and accuracy, by bin
BIN_FIELDS = ("samples", "confidence", "accuracy")
COUNTS = (CONFUSION, RELIABILITY)  # metrics of many numbers
MOST_SAMPLES = 2.0**53  # what a float can count to
SEPARATOR = "/"  # in the name of a number: part/metric


@dataclass(frozen=True)
class Metric:
    """One number of a client's predictions; None where it has no value."""

    about: str
    value: Callable[[Any, Floats], float | None]  # (targets, probabilities (n, K) or predicted numbers (n,))
    higher: bool = True  # is better
    least: float = 0.0
    most: float = 1.0


def _accuracy(y: Ints, p: Floats) -> float:
    return float((p.argmax(1) == y).mean())


def _log_loss(y: Ints, p: Floats) -> float:
    return float(-np.log(np.clip(p[np.arange(len(y)), y], 1e-300, None)).mean())


def _balanced_accuracy(y: Ints, p: Floats) -> float:
    from sklearn.metrics import balanced_accuracy_score

    return float(balanced_accuracy_score(y, p.argmax(1)))


def _macro_f1(y: Ints, p: Floats) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(y, p.argmax(1), average="macro", zero_division=0))


def _auroc(y: Ints, p: Floats) -> float | None:
    """The mean over the client's classes of one against the rest; of two classes, the usual one."""
    from sklearn.metrics import roc_auc_score

    present = np.unique(y)
    if len(present) < 2:
        return None
    return float(roc_auc_score(y[:, None] == present, p[:, present], average="macro"))


def _brier(y: Ints, p: Floats) -> float:
    """0 to 1 for two classes, as usual there; 0 to 2 for more, as Brier has it."""
    from sklearn.metrics import brier_score_loss

    if p.shape[1] == 1:
        return 0.0
    return float(brier_score_loss(y, p / p.sum(1, keepdims=True), labels=range(p.shape[1])))


def _calibration_error(y: Ints, p: Floats) -> float:
    """sum over the bins of confidence: share of samples * |accuracy - mean confidence|."""
    return expected_calibration_error(_bins(y, p))


def _bins(y: Ints, p: Floats) -> Floats:
    """Rows: bins of equal width of the confidence. Columns: samples, sum of their confidence, how many are right."""
    confidence, right = p.max(1), p.argmax(1) == y
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return np.stack(
        [np.bincount(bins, weights=each, minlength=BINS) for each in (np.ones(len(y)), confidence, right)], 1
    )


def expected_calibration_error(bins: Floats) -> float:
    """Of bins as `_bins` makes them; those of several clients may be summed first."""
    samples, confidence, right = bins.T
    return float(np.abs(right - confidence).sum() / samples.sum())


def _mean_squared_error(y: Floats, p: Floats) -> float:
    from sklearn.metrics import mean_squared_error

    return float(mean_squared_error(y, p))


def _mean_absolute_error(y: Floats, p: Floats) -> float:
    from sklearn.metrics import mean_absolute_error

    return float(mean_absolute_error(y, p))


def _r2(y: Floats, p: Floats) -> float | None:
    from sklearn.metrics import r2_score

    return None if len(y) < 2 or np.ptp(y) == 0 else float(r2_score(y, p))


OF_CLASSES = {
    "accuracy": Metric("share of correct predictions", _accuracy),
    "loss": Metric("mean cross-entropy", _log_loss, higher=False, most=math.inf),
    "balanced-accuracy": Metric("mean recall over classes", _balanced_accuracy),
    "macro-f1": Metric("mean F1 over classes", _macro_f1),
    "auroc": Metric("area under the ROC curve, one-vs-rest, mean over classes", _auroc),
    "brier": Metric("mean squared error of the probabilities", _brier, higher=False, most=2.0),
    "ece": Metric(f"expected calibration error, {BINS} bins", _calibration_error, higher=False),
}
OF_NUMBERS = {
    "r2": Metric("share of explained variance", _r2, least=-math.inf),
    "loss": Metric("mean squared error", _mean_squared_error, higher=False, most=math.inf),
    "mse": Metric("mean squared error", _mean_squared_error, higher=False, most=math.inf),
    "mae": Metric("mean absolute error", _mean_absolute_error, higher=False, most=math.inf),
}
METRICS = OF_CLASSES | OF_NUMBERS


def headline(classes: int) -> str:
    """What a model is judged by if nobody says otherwise."""
    return "accuracy" if classes else "r2"


def check_names(names: Iterable[str], classes: int) -> tuple[str, ...]:
    """The names, if all are metrics of such a task (classes = 0: a number is predicted)."""
    known = [*(OF_CLASSES if classes else OF_NUMBERS), *(COUNTS if classes else ())]
    for name in names:
        if name not in known:
            kind = "classification metric" if classes else "regression metric"
            raise ConfigError("run.metrics: " + unknown(kind, name, known))
    return tuple(dict.fromkeys(names))


def validated(names: Sequence[str], classes: int) -> tuple[str, ...]:
    """What is measured on validation data: what models are chosen by, and what was asked for."""
    return tuple(dict.fromkeys((headline(classes), "loss", *names)))


def in_own_units(unit: float, y: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Targets that were scaled, and what was predicted of them, as users know them; and so are their errors."""
    return (y, outputs) if unit == 1 else (unit * y, unit * outputs)


def measure(names: Iterable[str], part: Part, y: Tensor, outputs: Tensor) -> dict[str, float]:
    """Named numbers of one client's predictions: 'test/auroc', ...

    outputs   logits or log-probabilities of classes; or numbers
    """
    metrics = OF_NUMBERS if y.is_floating_point() else OF_CLASSES
    scores = outputs.detach().double().cpu()
    given = scores.view(len(y), -1)[:, 0].numpy() if y.is_floating_point() else scores.softmax(1).numpy()
    targets = y.detach().cpu().numpy()
    found: dict[str, float] = {}
    for name in names:
        if name in COUNTS:
            many = _confusion(targets, given.argmax(1)) if name == CONFUSION else _reliability(targets, given)
            found |= {f"{part}{SEPARATOR}{key}": value for key, value in many.items()}
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # classes that a client has none of are no surprise here
            value = metrics[name].value(targets, given)
        if value is not None:
            found[f"{part}{SEPARATOR}{name}"] = value
    return found


def _confusion(y: Ints, predicted: Ints) -> dict[str, float]:
    pairs, counts = np.unique(np.stack([y, predicted], axis=1), axis=0, return_counts=True)
    return {f"{CONFUSION} {a} {b}": float(n) for (a, b), n in zip(pairs.tolist(), counts.tolist(), strict=True)}


def confusion_matrix(found: Mapping[str, float], classes: int) -> NDArray[np.int64]:
    """Rows: true classes, columns: predicted ones. `found` is by metric, without the part."""
    matrix = np.zeros((classes, classes), dtype=np.int64)
    for name, count in found.items():
        kind, *pair = name.split()
        if kind == CONFUSION and len(pair) == 2:
            matrix[int(pair[0]), int(pair[1])] += int(count)
    return matrix


def _reliability(y: Ints, p: Floats) -> dict[str, float]:
    found: dict[str, float] = {}
    for at, (samples, confidence, right) in enumerate(_bins(y, p).tolist()):
        if samples:  # an empty bin has neither a confidence nor an accuracy
            values = (samples, confidence / samples, right / samples)
            found |= {f"{RELIABILITY} {at} {field}": v for field, v in zip(BIN_FIELDS, values, strict=True)}
    return found


def reliability_bins(found: Mapping[str, float]) -> Floats:
    """As `_bins` makes them. `found` is one client's by metric, without the part."""
    bins = np.zeros((BINS, 3))
    for at in range(BINS):
        samples, confidence, accuracy = (found.get(f"{RELIABILITY} {at} {field}", 0.0) for field in BIN_FIELDS)
        bins[at] = samples, samples * confidence, samples * accuracy
    return bins


def misfit(measured: Mapping[str, float], names: Sequence[str], classes: int) -> str | None:
    """What is wrong with numbers that a site answered; None if they can be."""
    for key, value in measured.items():
        part, _, name = key.partition(SEPARATOR)
        kind, *which = name.split(" ")
        if part not in ("test", "validation") or kind not in names or (kind in COUNTS) != bool(which):
            return f"it sent '{key[:80]}', which was not requested"
        if kind == CONFUSION:
            if len(which) != 2 or not all(_below(classes, at) for at in which):
                return f"it sent '{key[:80]}'; expected two classes of 0 to {classes - 1}"
            least, most = 0.0, MOST_SAMPLES
        elif kind == RELIABILITY:
            if len(which) != 2 or not _below(BINS, which[0]) or which[1] not in BIN_FIELDS:
                return f"it sent '{key[:80]}'; expected a bin of 0 to {BINS - 1} and one of {', '.join(BIN_FIELDS)}"
            least, most = 0.0, MOST_SAMPLES if which[1] == "samples" else 1.0
        else:
            metric = (OF_CLASSES if classes else OF_NUMBERS)[kind]
            least, most = metric.least, metric.most
        if not (least - 1e-9 <= value <= most + 1e-9):  # NaN is neither
            return f"'{key}' is {value:g}; expected {least:g} to {most:g}"
    return None


def _below(count: int, text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < count
