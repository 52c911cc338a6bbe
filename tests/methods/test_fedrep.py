"""FedRep against its algorithm written out by hand."""

from fedpac.methods.fedrep import FedRep
from fedpac.models import section
from helpers import assert_close, assert_equal, literal_mean, literal_training, run_federation, tiny_data, tiny_task


def test_two_rounds_equal_the_literal_algorithm():
    """The head first and with its own rate, then the body; no momentum is carried from one to the other."""
    data = tiny_data()
    task = tiny_task(len(data))
    body = section(task.initial, "body")
    heads = [section(task.initial, "head") for _ in data]
    for t in (1, 2):
        bodies = []
        for i in range(len(data)):
            w = {**body, **heads[i]}
            w = literal_training(task, data, i, t, w, "head", trained="head.", epochs=3, lr=0.2)
            w = literal_training(task, data, i, t, w, "body", trained="body.", epochs=1)
            heads[i] = section(w, "head")
            bodies.append(section(w, "body"))
        body = literal_mean(bodies, [len(own.train) for own in data])
    finished = run_federation(FedRep(head_epochs=3, head_lr=0.2, body_epochs=1), data=data)
    assert_close(finished.server.weights("w"), body)
    for i in range(len(data)):
        assert_close(finished.states[i]["own"], heads[i])


def test_only_the_body_travels():
    finished = run_federation(FedRep())
    assert set(finished.server.weights("w")) == {"body.0.weight", "body.0.bias"}
    assert finished.reports[0].bytes_down == 4 * 4 * (5 * 6 + 5)
    assert finished.reports[0].bytes_up == finished.reports[0].bytes_down + 4 * 8


def test_no_epochs_change_nothing():
    finished = run_federation(FedRep(head_epochs=0, body_epochs=0))
    assert_equal(finished.server.weights("w"), section(finished.task.initial, "body"))
