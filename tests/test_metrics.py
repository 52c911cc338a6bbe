"""Metrics: scikit-learn's numbers where it has them, and a definition written out where it has not."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from fedpac.engines import ProcessEngine, SerialEngine
from fedpac.errors import ConfigError
from fedpac.methods import make_method
from fedpac.metrics import (
    METRICS,
    check_names,
    confusion_matrix,
    expected_calibration_error,
    measure,
    misfit,
    reliability_bins,
)
from fedpac.testing.tiny import CLASSES, run_federation, start_federation, tiny_data

ASKED = ("balanced-accuracy", "macro-f1", "auroc", "brier", "ece", "confusion", "reliability")


@pytest.fixture
def predicted():
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(0, 3, (40,), generator=generator)
    return y, torch.randn(40, 4, generator=generator) + torch.nn.functional.one_hot(y, 4)


def test_the_numbers_are_those_of_scikit_learn(predicted):
    y, outputs = predicted
    p = outputs.double().softmax(1).numpy()
    found = measure(ASKED, "test", y, outputs)
    assert found["test/balanced-accuracy"] == sk.balanced_accuracy_score(y, p.argmax(1))
    assert found["test/macro-f1"] == sk.f1_score(y, p.argmax(1), average="macro", zero_division=0)
    assert found["test/auroc"] == pytest.approx(np.mean([sk.roc_auc_score(y == k, p[:, k]) for k in range(3)]))
    assert found["test/brier"] == pytest.approx(np.square(p - np.eye(4)[y]).sum(1).mean())
    matrix = confusion_matrix({k.removeprefix("test/"): v for k, v in found.items()}, 4)
    assert (matrix == sk.confusion_matrix(y, p.argmax(1), labels=range(4))).all()


def test_auroc_and_brier_of_two_classes_are_the_usual_ones():
    y, outputs = torch.tensor([0, 1, 1, 0, 1]), torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    p = outputs.double().softmax(1).numpy()
    found = measure(("auroc", "brier"), "test", y, outputs)
    assert found["test/auroc"] == pytest.approx(sk.roc_auc_score(y, p[:, 1]))
    assert found["test/brier"] == pytest.approx(np.square(p[:, 1] - y.numpy()).mean())


def test_the_calibration_error_by_its_definition(predicted):
    y, outputs = predicted
    p = outputs.double().softmax(1)
    confidence, guess = p.max(1)
    total = 0.0
    for b in range(15):
        inside = (confidence >= b / 15) & (confidence < (b + 1) / 15)
        if inside.any():
            right = guess[inside].eq(y[inside]).double().mean()
            total += float(inside.double().mean() * (right - confidence[inside].mean()).abs())
    assert measure(("ece",), "test", y, outputs)["test/ece"] == pytest.approx(total)


def test_reliability_is_the_calibration_curve_of_being_right(predicted):
    y, outputs = predicted
    p = outputs.double().softmax(1).numpy()
    found = {k.removeprefix("test/"): v for k, v in measure(("ece", "reliability"), "test", y, outputs).items()}
    bins = reliability_bins(found)
    samples, confidence, right = bins[bins[:, 0] > 0].T
    accuracies, confidences = calibration_curve(p.argmax(1) == y.numpy(), p.max(1), n_bins=15)
    assert right / samples == pytest.approx(accuracies)
    assert confidence / samples == pytest.approx(confidences)
    assert samples.sum() == len(y)
    assert expected_calibration_error(bins) == pytest.approx(found["ece"])
    assert len(found) == 1 + 3 * len(samples)  # nothing of empty bins


def test_bins_of_clients_add_up(predicted):
    y, outputs = predicted
    parts = [measure(("reliability",), "test", y[at], outputs[at]) for at in (slice(0, 25), slice(25, 40))]
    bins = [reliability_bins({k.removeprefix("test/"): v for k, v in part.items()}) for part in parts]
    assert expected_calibration_error(sum(bins)) == pytest.approx(measure(("ece",), "test", y, outputs)["test/ece"])


def test_a_client_with_one_class_has_no_auroc():
    found = measure(("auroc", "macro-f1"), "test", torch.zeros(5, dtype=torch.long), torch.randn(5, 3))
    assert found.keys() == {"test/macro-f1"}


@pytest.mark.parametrize("name", METRICS)
def test_better_predictions_are_better(name):
    """The direction that `higher` names is right."""
    classes = name not in ("r2", "mae", "mse")
    y = torch.tensor([0, 1, 2, 1]) if classes else torch.tensor([0.0, 1.0, 2.0, 1.5])
    good = 3.0 * torch.nn.functional.one_hot(y, 3) if classes else y[:, None] + 0.1
    bad = -3.0 * torch.nn.functional.one_hot(y, 3) if classes else 2 - y[:, None]
    better, worse = (measure((name,), "test", y, outputs.float())[f"test/{name}"] for outputs in (good, bad))
    assert better > worse if METRICS[name].higher else better < worse


def test_unknown_metrics_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'auroc'"):
        check_names(["auroq"], 3)
    with pytest.raises(ConfigError, match="there is no regression metric 'accuracy'"):
        check_names(["accuracy"], 0)


@pytest.mark.parametrize(
    ("measured", "problem"),
    [
        ({"test/auroc": 1.5}, "'test/auroc' is 1.5; expected 0 to 1"),
        ({"test/auroc": math.nan}, "is nan"),
        ({"test/secret": 1.0}, "not requested"),
        ({"rows/auroc": 0.5}, "not requested"),
        ({"test/confusion 0 9": 1.0}, "expected two classes"),
        ({"test/confusion 0": 1.0}, "expected two classes"),
        ({"test/confusion": 1.0}, "not requested"),
        ({"test/confusion ٣ 1": 1.0, "test/confusion 9999999999999 1": 1.0}, "expected two classes"),
        ({"test/reliability": 1.0}, "not requested"),
        ({"test/reliability 15 samples": 1.0}, "expected a bin of 0 to 14"),
        ({"test/reliability 3 colour": 1.0}, "one of samples, confidence, accuracy"),
        ({"test/reliability 3 accuracy": 1.5}, "expected 0 to 1"),
        ({"test/reliability 3 samples": math.inf}, "is inf"),
        ({"test/auroc": 0.5, "validation/confusion 0 1": 3.0, "test/reliability 14 samples": 1e4}, None),
    ],
)
def test_numbers_that_cannot_be_are_refused(measured, problem):
    found = misfit(measured, ("auroc", "confusion", "reliability"), 4)
    assert found is None if problem is None else problem in found


@pytest.mark.parametrize("method", ["fedavg", "fedem", "knn-per", "fed-rod"])
def test_engines_agree_and_only_numbers_travel(method):
    runs = [
        run_federation(make_method(method), engine=engine, data=tiny_data((7, 12, 5, 9)), metrics=ASKED)
        for engine in (SerialEngine, lambda *how: ProcessEngine(*how, workers=2))
    ]
    assert runs[0].scores() == runs[1].scores()
    scores = runs[0].reports[-1].scores
    assert len(scores) == 8
    assert all(isinstance(value, float) for score in scores for value in score.measured.values())
    assert {name.split()[0] for score in scores for name in score.measured} == {f"test/{name}" for name in ASKED}


def test_nothing_is_measured_unless_asked():
    assert all(not score.measured for score in run_federation(make_method("fedavg")).reports[-1].scores)


def test_a_metric_that_the_task_does_not_have_ends_before_the_first_round():
    with pytest.raises(ConfigError, match="there is no classification metric 'mae'"):
        start_federation(make_method("fedavg"), metrics=("mae",))
    assert CLASSES > 1
