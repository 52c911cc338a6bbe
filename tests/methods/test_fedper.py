"""FedPer against its algorithm written out by hand."""

from fedpac.methods.fedavg import FedAvg
from fedpac.methods.fedper import FedPer
from fedpac.models import section, weights_of
from helpers import (
    assert_close,
    assert_equal,
    literal_mean,
    literal_training,
    run_federation,
    tiny_data,
    tiny_model,
    tiny_task,
    visit,
)  # fmt: skip


def test_two_rounds_equal_the_literal_algorithm():
    data = tiny_data()
    task = tiny_task(len(data))
    body = section(task.initial, "body")
    heads = [section(task.initial, "head") for _ in data]
    for t in (1, 2):
        trained = [literal_training(task, data, i, t, {**body, **heads[i]}) for i in range(len(data))]
        heads = [section(w, "head") for w in trained]
        body = literal_mean([section(w, "body") for w in trained], [len(own.train) for own in data])
    finished = run_federation(FedPer(), data=data)
    assert_close(finished.server.weights("w"), body)
    for i in range(len(data)):
        assert_close(finished.states[i]["own"], heads[i])


def test_with_an_empty_head_it_is_fedavg():
    one, other = (run_federation(m, model=tiny_model("headless")) for m in (FedPer(), FedAvg()))
    assert_equal(one.server.weights("w"), other.server.weights("w"))
    assert one.scores() == other.scores()


def test_everybody_gets_the_new_body_and_newcomers_the_common_first_head():
    data = tiny_data()
    finished = run_federation(FedPer(), rounds=1, data=data)
    newcomer = visit(finished.task, data, 1, round=2)
    model = FedPer().received(newcomer, FedPer().send(finished.server, 1))
    assert_equal(weights_of(model), {**finished.server.weights("w"), **section(finished.task.initial, "head")})
    veteran = visit(finished.task, data, 1, round=2, state=finished.states[1])
    model = FedPer().received(veteran, FedPer().send(finished.server, 1))
    assert_equal(weights_of(model), {**finished.server.weights("w"), **finished.states[1]["own"]})
