"""Local-only against SGD written out by hand."""

from fedpac.methods.local import Local
from fedpac.training import evaluate
from helpers import assert_close, literal_training, run_federation, tiny_data, tiny_task, visit


def test_every_client_goes_on_from_its_own_model():
    data = tiny_data()
    task = tiny_task(len(data))
    finished = run_federation(Local(), data=data)
    for i in range(len(data)):
        w = task.initial
        for t in (1, 2):
            w = literal_training(task, data, i, t, w)
        assert_close(finished.states[i]["own"], w)


def test_nothing_is_exchanged():
    finished = run_federation(Local())
    assert finished.reports[0].bytes_down == 0
    assert finished.reports[0].bytes_up == 8 * 4  # each client says how many samples it has
    assert finished.server.state == {"w": {}}


def test_who_rests_keeps_its_model_and_a_newcomer_has_the_initial_one():
    data = tiny_data()
    finished = run_federation(Local(), rounds=4, data=data, participation=0.25)
    task, w = finished.task, dict.fromkeys(range(len(data)), finished.task.initial)
    for report in finished.reports:
        for i in report.chosen:
            w[i] = literal_training(task, data, i, report.round, w[i])
        for score in report.scores:
            if score.which == "received":
                client = visit(task, data, score.client)
                _, loss = evaluate(client.with_weights(w[score.client]), *client.test_set)
                assert abs(score.loss - loss) < 1e-5
