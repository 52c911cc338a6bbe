"""FedFomo against its equations and Local-only."""

import pytest
import torch
import torch.nn.functional as F

from fedpac.message import Message
from fedpac.methods.fedfomo import FedFomo
from fedpac.methods.local import Local
from fedpac.models import copy_with, weights_of
from fedpac.server import Server
from fedpac.training import shuffled_batches
from helpers import (
    RECIPE,
    assert_close,
    assert_equal,
    literal_sgd,
    run_federation,
    tiny_data,
    tiny_model,
    tiny_task,
    visit,
)


@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_alone_and_without_validation_data_it_is_local_only(model, participation):
    alone = run_federation(FedFomo(models=1, validation=0), model=tiny_model(model), participation=participation)
    local = run_federation(Local(), model=tiny_model(model), participation=participation)
    for i, state in local.states.items():
        assert_equal(alone.states[i]["theta"], state["own"])
    assert [r.accuracies("personal") for r in alone.reports] == [r.accuracies("personal") for r in local.reports]


def literal_round(task, data, i, t, start, theta, peers):
    """(start, theta, gains) of one client after one round; its own theta and its peers' are given."""
    client = visit(task, data, i, t)
    keep, held = FedFomo().split(client)
    x, y = data[i].train.tensors()
    loss = lambda w: F.cross_entropy(copy_with(task.model, w)(x[held]), y[held]).item()  # noqa: E731
    gains = []
    for candidate in [theta, *peers]:
        distance = sum(float((candidate[name] - start[name]).abs().sum()) for name in start)
        gains.append((loss(start) - loss(candidate)) / distance if distance else 0.0)
    positive = [max(0.0, g) for g in gains]
    moved = theta
    if sum(positive):
        moved = {name: tensor.clone() for name, tensor in start.items()}
        for g, candidate in zip(positive, [theta, *peers], strict=True):
            for name in moved:
                moved[name] += g / sum(positive) * (candidate[name] - start[name])
    order = shuffled_batches(len(keep), RECIPE["batch"], RECIPE["epochs"], client.stream("train"))
    trained = literal_sgd(copy_with(task.model, moved), x, y, [keep[b] for b in order])
    return moved, trained, gains


def test_three_rounds_equal_the_literal_algorithm():
    data = tiny_data(sizes=(7, 12, 1, 9))
    task, everybody = tiny_task(4, 3), range(4)
    start, theta = [task.initial] * 4, [task.initial] * 4
    affinity = torch.eye(4)
    for t in (1, 2, 3):
        peers = {i: [theta[j] for j in everybody if j != i] if t > 1 else [] for i in everybody}
        rounds = [literal_round(task, data, i, t, start[i], theta[i], peers[i]) for i in everybody]
        for i, (start[i], theta[i], gains) in enumerate(rounds):
            size = sum(abs(g) for g in gains)
            for j, g in zip([i, *(j for j in everybody if j != i)], gains, strict=False):
                affinity[i, j] += g / size if size else 0.0
    run = run_federation(FedFomo(), data=data, rounds=3)
    for i in everybody:
        assert_close(run.states[i]["start"], start[i])
        assert_close(run.states[i]["theta"], theta[i])
    torch.testing.assert_close(run.server.tensor("affinity"), affinity, rtol=1e-3, atol=1e-4)


def test_the_validation_split_is_fixed_and_apart_from_training():
    """One public implementation shuffles it anew every round, so that it leaks into training."""
    data = tiny_data(sizes=(20, 1, 2))
    task = tiny_task(3)
    keep, held = FedFomo().split(visit(task, data, 0, 1))
    again = FedFomo().split(visit(task, data, 0, 7))
    assert torch.equal(keep, again[0])
    assert torch.equal(held, again[1])
    assert len(held) == 4
    assert sorted([*keep.tolist(), *held.tolist()]) == list(range(20))
    assert [len(part) for part in FedFomo().split(visit(task, data, 1))] == [1, 1]  # one sample serves for both
    assert [len(part) for part in FedFomo().split(visit(task, data, 2))] == [1, 1]


def server_with(models, clients=6, round=20):
    task = tiny_task(clients)
    server = Server(task)
    server.round = round
    FedFomo().setup(server)
    server.state.update({f"model {j}": task.initial for j in models})
    return server


def test_candidates_are_the_best_liked_peers_and_never_oneself():
    server = server_with(range(6))
    liking = torch.tensor([0.1, 5.0, -1.0, 0.3, 0.2, 0.0])
    server.state["affinity"] = liking.expand(6, 6)
    assert FedFomo(models=4).candidates(server, 1) == [0, 3, 4]
    assert FedFomo(models=1).candidates(server, 1) == []


def test_there_are_fewer_candidates_while_few_have_taken_part():
    assert FedFomo().candidates(server_with([]), 0) == []
    assert FedFomo().candidates(server_with([0, 4]), 0) == [4]
    assert len(FedFomo().candidates(server_with(range(6)), 0)) == 4


def test_exploration_fades():
    server = server_with(range(6), round=1)
    server.state["affinity"] = torch.arange(6.0).expand(6, 6)
    explorer = FedFomo(models=3, epsilon=1.0, epsilon_decay=0.1)
    early = {tuple(explorer.candidates(server, 0)) for server.round in range(1, 4)}
    late = {tuple(explorer.candidates(server, 0)) for server.round in range(11, 40)}
    assert len(early) > 1
    assert late == {(4, 5)}


def test_helpful_models_get_weight_and_harmful_ones_none():
    data = tiny_data(sizes=(12, 12))
    task = tiny_task(2)
    x, y = data[0].train.tensors()
    good = literal_sgd(copy_with(task.model, task.initial), x, y, [torch.arange(12)] * 40)
    bad = literal_sgd(copy_with(task.model, task.initial), x, (y + 1) % 4, [torch.arange(12)] * 40)
    client = visit(task, data, 0)
    down = Message(peers=torch.tensor([1, 2]), **{"model 1": bad, "model 2": good})
    start, gains, shares = FedFomo().combine(client, down)
    assert shares.tolist() == [0.0, 0.0, 1.0]
    assert gains[1] < 0 < gains[2]
    assert_equal(start, good)
    assert_equal(weights_of(FedFomo().received(client, down)), good)


def test_the_weights_are_reported():
    run = run_federation(FedFomo(), rounds=3)
    rows = run.reports[-1].peer_weights
    for i in range(4):
        assert sum(weight for client, _, weight in rows if client == i) == pytest.approx(1)
    assert any(client != peer for client, peer, _ in rows)
    assert all(weight > 0 for _, _, weight in rows)


def test_a_round_sends_the_other_models_only():
    data = tiny_data(sizes=(6,) * 7)
    report = run_federation(FedFomo(), data=data, rounds=2).reports[1]
    model = sum(4 * t.numel() for t in tiny_task(7).initial.values())
    assert 7 * 4 * model <= report.bytes_down <= 7 * 4 * (model + 8)
