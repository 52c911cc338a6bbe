"""Numbers instead of classes: the squared error, R^2, and methods that refuse by name."""

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score
from torch import nn

import fedpac
from fedpac.errors import ConfigError, DataError
from fedpac.methods import list_methods


def clients():
    generator = np.random.default_rng(0)
    slope = generator.normal(size=4)
    made = []
    for _ in range(3):
        x = generator.normal(size=(60, 4)).astype("float32")
        y = x @ (slope + 0.2 * generator.normal(size=4)) + 0.1 * generator.normal(size=60)
        made.append((x[:40], y[:40], x[40:], y[40:]))
    return made


def model():
    torch.manual_seed(0)
    return fedpac.Classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 1))


def fitted(method="fedavg", **more):
    how = {"classes": 0, "rounds": 8, "lr": 0.05, "batch": 10, "engine": "serial", **more}
    return fedpac.fit(model(), clients(), method, **how)


def test_a_number_is_predicted_and_r2_stands_for_accuracy():
    result = fitted(metrics=["mae"], validation_share=0.2)
    x_test, y_test = clients()[1][2:]
    predicted = result.models[1].predict(x_test)
    assert predicted.shape == y_test.shape
    assert result.accuracy[1] == pytest.approx(r2_score(y_test, predicted), abs=1e-5)
    assert result.accuracy[1] > 0.8
    report = result.history[-1]
    assert report.measured("received", "test/mae")[1] == pytest.approx(np.abs(predicted - y_test).mean(), abs=1e-5)
    assert report.measured("received", "validation/r2").keys() == {0, 1, 2}
    assert result.selected.server.round >= 1
    with pytest.raises(ConfigError, match="is a regression model"):
        result.models[1].predict_proba(x_test)


def test_engines_agree():
    one, other = (fitted("ditto", engine=engine, workers=2, rounds=2) for engine in ("serial", "process"))
    assert [report.scores for report in one.history] == [report.scores for report in other.history]


@pytest.mark.parametrize("name", [name for name, cls in list_methods().items() if cls.needs_classes])
def test_methods_that_need_classes_refuse_by_name(name):
    with pytest.raises(ConfigError, match=f"method {name}: it needs classes"):
        fitted(name)


def test_most_methods_need_none():
    free = {name for name, cls in list_methods().items() if not cls.needs_classes}
    assert {"local", "fedavg", "fedprox", "scaffold", "fedper", "fedrep", "ditto", "apfl", "pfedme", "pfedhn"} <= free
    assert not free & {"fedpac", "fedproto-g", "fed-rod", "knn-per", "fedem"}


def test_numbers_are_not_taken_for_classes():
    with pytest.raises(DataError, match="expected one whole number per sample"):
        fedpac.fit(model(), clients(), "fedavg")
    bad = [(x, np.where(y > 1, np.inf, y), *rest) for x, y, *rest in clients()]
    with pytest.raises(DataError, match="infinite"):
        fedpac.fit(model(), bad, "fedavg", classes=0)


@pytest.mark.parametrize("training", [{"label_smoothing": 0.1}, {"class_weights": "balanced"}])
def test_losses_of_classes_are_refused(training):
    with pytest.raises(ConfigError, match="need classes, but this task is regression"):
        fitted(training=training)


def test_metrics_of_classes_are_refused():
    with pytest.raises(ConfigError, match="no regression metric 'auroc'"):
        fitted(metrics=["auroc"])
