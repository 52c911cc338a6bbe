"""FedAvg-FT: FedAvg, and a fine-tuned copy for prediction only."""

import pytest

from fedpac.message import Message
from fedpac.methods.fedavg import FedAvg
from fedpac.methods.fedavg_ft import FedAvgFT
from fedpac.models import weights_of
from helpers import assert_close, assert_equal, literal_training, run_federation, tiny_data, visit


@pytest.mark.parametrize("settings", [{}, {"epochs": 9, "lr": 0.3}, {"depth": "head"}])
def test_the_copy_never_enters_the_average(settings):
    assert_equal(run_federation(FedAvgFT(**settings)).server.weights("w"), run_federation(FedAvg()).server.weights("w"))


def test_with_its_defaults_the_copy_is_fedavgs_local_model():
    tuned, plain = run_federation(FedAvgFT()), run_federation(FedAvg())
    assert tuned.reports[-1].scores == plain.reports[-1].scores
    assert tuned.accuracies("personal") != tuned.accuracies("received")


@pytest.mark.parametrize(("depth", "trained"), [("all", ""), ("head", "head.")])
def test_fine_tuning_equals_the_literal_loop(depth, trained):
    data = tiny_data()
    finished = run_federation(FedAvgFT(), rounds=1, data=data)
    w = finished.server.weights("w")
    for i in range(len(data)):
        client = visit(finished.task, data, i, round=2)
        model = FedAvgFT(depth=depth, epochs=3, lr=0.2).personal(client, Message(w=w), Message())
        by_hand = literal_training(finished.task, data, i, 2, w, epochs=3, lr=0.2, trained=trained)
        assert_close(weights_of(model), by_hand)
        assert client.state == {}


def test_no_epochs_leave_the_received_model():
    data = tiny_data()
    finished = run_federation(FedAvgFT(), rounds=1, data=data)
    down = Message(w=finished.server.weights("w"))
    model = FedAvgFT(epochs=0).personal(visit(finished.task, data, 0, 2), down, Message())
    assert_equal(weights_of(model), down.weights("w"))
