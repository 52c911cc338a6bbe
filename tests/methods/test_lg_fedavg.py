"""LG-FedAvg against its algorithm written out by hand, with and without a warm start."""

from fedpac.methods.fedavg import FedAvg
from fedpac.methods.lg_fedavg import LGFedAvg
from fedpac.models import section
from helpers import (
    assert_close,
    assert_equal,
    literal_mean,
    literal_training,
    run_federation,
    tiny_data,
    tiny_model,
    tiny_task,
)  # fmt: skip

HEAD, BODY = 4 * (4 * 5 + 4), 4 * (5 * 6 + 5)  # bytes


def by_hand(task, data, w, rounds):
    """Bodies stay where they are, heads are averaged; all start from w."""
    head, bodies = section(w, "head"), [section(w, "body") for _ in data]
    for t in rounds:
        trained = [literal_training(task, data, i, t, {**bodies[i], **head}) for i in range(len(data))]
        bodies = [section(own, "body") for own in trained]
        head = literal_mean([section(own, "head") for own in trained], [len(own.train) for own in data])
    return head, bodies


def test_two_rounds_equal_the_literal_algorithm():
    data = tiny_data()
    task = tiny_task(len(data))
    head, bodies = by_hand(task, data, task.initial, (1, 2))
    finished = run_federation(LGFedAvg(), data=data)
    assert_close(section(finished.server.weights("w"), "head"), head)
    for i in range(len(data)):
        assert_close(finished.states[i]["own"], bodies[i])
    assert finished.reports[0].bytes_down == 4 * HEAD


def test_with_nothing_local_it_is_fedavg():
    one, other = (run_federation(m, model=tiny_model("linear")) for m in (LGFedAvg(), FedAvg()))
    assert_equal(one.server.weights("w"), other.server.weights("w"))
    assert one.reports[-1].scores == other.reports[-1].scores


def test_the_warm_start_is_fedavg_and_the_bodies_start_from_its_average():
    data = tiny_data()
    fedavg = run_federation(FedAvg(), rounds=2, data=data)
    warm = run_federation(LGFedAvg(warm_start_rounds=2), rounds=4, data=data)
    assert [r.scores for r in warm.reports[:2]] == [r.scores for r in fedavg.reports]
    head, bodies = by_hand(warm.task, data, fedavg.server.weights("w"), (3, 4))
    assert_close(section(warm.server.weights("w"), "head"), head)
    for i in range(len(data)):
        assert_close(warm.states[i]["own"], bodies[i])
    # whole models in both directions, then the body once more to everybody, then heads only
    down = [report.bytes_down for report in warm.reports]
    assert down == [4 * (BODY + HEAD)] * 3 + [4 * HEAD]


def test_who_missed_the_warm_start_gets_its_body_too():
    data = tiny_data()
    method = LGFedAvg(warm_start_rounds=1)
    finished = run_federation(method, rounds=3, data=data, participation=0.25)
    (first,), (second,) = finished.reports[0].chosen, finished.reports[1].chosen
    late = next(i for i in range(len(data)) if i not in (first, second))
    task = finished.task
    warm = literal_training(task, data, first, 1, task.initial)
    head = section(literal_training(task, data, second, 2, warm), "head")
    mine = literal_training(task, data, late, 3, {**warm, **head})
    assert_close(finished.states[late]["own"], section(mine, "body"))
