"""The round loop: who takes part, what is evaluated and when, and what is counted."""

import pytest

from fedpac.engines import SerialEngine
from fedpac.evaluation import Evaluation
from fedpac.federation import Federation
from fedpac.methods import make_method
from fedpac.sampling import Uniform
from fedpac.training import evaluate
from helpers import run_federation, tiny_data, tiny_task


def federation(clients: int, rounds: int, participation: float, seed: int = 3, evaluate_every: int = 1) -> Federation:
    data = tiny_data(sizes=(5,) * clients)
    task = tiny_task(clients, rounds, seed=seed)
    method = make_method("fedavg")
    engine = SerialEngine(task, method, data)
    return Federation(task, method, engine, sampler=Uniform(participation), evaluation=Evaluation(evaluate_every))


def choose(clients: int, rounds: int, share: float, round: int, seed: int = 3) -> list[int]:
    return Uniform(share).choose(tiny_task(clients, rounds, seed=seed), round, range(clients))


def test_a_share_of_the_clients_takes_part_and_all_in_the_last_round():
    plan = [choose(10, 6, 0.3, t) for t in range(1, 7)]
    assert [len(chosen) for chosen in plan] == [3, 3, 3, 3, 3, 10]
    assert all(chosen == sorted(set(chosen)) for chosen in plan)
    assert len({tuple(chosen) for chosen in plan}) > 2  # drawn anew in every round


def test_who_takes_part_depends_on_seed_and_round_alone():
    plans = [[choose(10, 9, 0.3, t, seed) for t in range(1, 9)] for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert choose(10, 9, 0.3, 5, seed=1) == plans[0][4]  # also out of order, as after a restart


def test_somebody_always_takes_part():
    assert len(choose(4, 9, 0.01, 1)) == 1


def test_evaluation_comes_at_its_cadence_and_always_last():
    done = list(federation(3, 5, 1.0, evaluate_every=2).rounds())
    assert [bool(report.scores) for report in done] == [False, True, False, True, True]


def test_both_accuracies_of_every_client_also_of_those_that_stayed_away():
    report = federation(6, 9, 0.3).step()
    assert len(report.chosen) == 2
    assert [s.client for s in report.scores if s.which == "received"] == list(range(6))
    assert [s.client for s in report.scores if s.which == "personal"] == list(range(6))


def test_received_is_the_merged_model_and_personal_the_trained_one():
    data = tiny_data()
    done = run_federation(make_method("fedavg"), rounds=1, data=data)
    model = done.federation.engine.site.model
    for i, client in enumerate(data):
        model.load_state_dict(done.server.weights("w"))
        score = next(s for s in done.reports[0].scores if (s.which, s.client) == ("received", i))
        assert (score.accuracy, score.loss) == evaluate(model, *client.test.tensors())
    personal = {s.client: s.loss for s in done.reports[0].scores if s.which == "personal"}
    received = {s.client: s.loss for s in done.reports[0].scores if s.which == "received"}
    assert all(personal[i] != received[i] for i in personal)


def test_bytes_are_those_of_the_chosen_clients_messages():
    running = federation(6, 9, 0.3)
    report = running.step()
    model = sum(t.numel() * t.element_size() for t in running.task.initial.values())
    assert report.bytes_down == 2 * model
    assert report.bytes_up == 2 * (model + 8)  # and the number of samples


@pytest.mark.parametrize("method", ["local", "fedavg", "fedpac"])
def test_evaluating_more_often_changes_nothing_else(method):
    results = []
    for cadence in (1, 3):
        data = tiny_data()
        task = tiny_task(len(data), 3)
        chosen = make_method(method)
        running = Federation(
            task, chosen, SerialEngine(task, chosen, data), sampler=Uniform(0.5), evaluation=Evaluation(cadence)
        )
        results.append(list(running.rounds())[-1].scores)
    assert results[0] == results[1]
