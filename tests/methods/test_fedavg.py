"""FedAvg against SGD and averaging written out by hand."""

import torch

from fedpac.methods.fedavg import FedAvg
from fedpac.weights import average
from helpers import (
    assert_close,
    assert_equal,
    batches_of,
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
    w = task.initial
    for t in (1, 2):
        trained = [literal_training(task, data, i, t, w) for i in range(len(data))]
        w = literal_mean(trained, [len(own.train) for own in data])
    assert_close(run_federation(FedAvg(), data=data).server.weights("w"), w)


def test_the_small_last_batch_is_kept_and_a_client_smaller_than_a_batch_learns():
    data = tiny_data(sizes=(7, 2))
    task = tiny_task(2)
    seen = batches_of(visit(task, data, 0), epochs=1)
    assert [len(b) for b in seen] == [4, 3]
    assert sorted(torch.cat(seen).tolist()) == list(range(7))
    w = run_federation(FedAvg(), rounds=1, data=data[1:]).server.weights("w")
    assert not torch.equal(w["head.weight"], task.initial["head.weight"])


def test_only_those_who_take_part_are_averaged():
    data = tiny_data()
    task = tiny_task(len(data), rounds=2)
    finished = run_federation(FedAvg(), data=data, participation=0.5)
    chosen = finished.reports[0].chosen
    assert len(chosen) == 2
    w = literal_mean(
        [literal_training(task, data, i, 1, task.initial) for i in chosen], [len(data[i].train) for i in chosen]
    )
    w = literal_mean(
        [literal_training(task, data, i, 2, w) for i in range(len(data))], [len(own.train) for own in data]
    )
    assert_close(finished.server.weights("w"), w)


def test_the_average_weighs_by_samples_and_leaves_integers_alone():
    weights = {
        0: {"w": torch.tensor([0.0]), "steps": torch.tensor(5)},
        1: {"w": torch.tensor([4.0]), "steps": torch.tensor(8)},
    }
    mean = average(weights, {0: 1.0, 1: 3.0})
    assert mean["w"].item() == 3.0
    assert mean["steps"].dtype == torch.int64
    assert mean["steps"].item() == 5


def test_the_state_of_batch_norm_is_averaged_and_a_batch_of_one_sample_is_no_error():
    finished = run_federation(FedAvg(), rounds=1, data=tiny_data((5, 1)), model=tiny_model("norm"))
    w = finished.server.weights("w")
    assert w["body.1.running_mean"].abs().sum() > 0
    alone = run_federation(FedAvg(), rounds=1, data=tiny_data((1,)), model=tiny_model("norm"))
    initial = alone.task.initial
    assert_equal(  # one sample has no variance, so the statistics stay as they were
        {n: t for n, t in alone.server.weights("w").items() if "running" in n},
        {n: t for n, t in initial.items() if "running" in n},
    )
    assert not torch.equal(alone.server.weights("w")["head.weight"], initial["head.weight"])
