"""FedPAC against a slow, literal transcription of Algorithm 1, its identities, and bugs of other implementations."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedpac.data.augment import crop_and_flip
from fedpac.message import Message, Weights
from fedpac.methods import make_method
from fedpac.methods.fedpac import FedPAC
from fedpac.methods.fedrep import FedRep
from fedpac.models import copy_with, section
from fedpac.server import Server
from helpers import (
    CLASSES,
    FEATURES,
    assert_close,
    assert_equal,
    batches_of,
    literal_mean,
    literal_sgd,
    run_federation,
    tiny_data,
    tiny_images,
    tiny_task,
    visit,
)


def test_two_rounds_follow_algorithm_1() -> None:
    data = tiny_data()
    method = FedPAC(lam=0.7, head_lr=0.2)
    done = run_federation(method, rounds=2, data=data)
    body, heads, centroids, alpha = literal_fedpac(data, rounds=2, lam=0.7, head_lr=0.2)
    assert_close(section(done.server.weights("w"), "body"), body)
    for i, head in enumerate(heads):
        assert_close(done.server.weights(f"head.{i}"), head)
    sent = done.server.weights("centroids")
    for k in range(CLASSES):
        if centroids[k] is None:
            assert sent["counts"][k] == 0
        else:
            torch.testing.assert_close(sent["means"][k], centroids[k], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weight_matrix(done.server), alpha, atol=1e-4)


def test_augmented_statistics_and_centroids_are_of_cropped_and_flipped_images() -> None:
    data, model = tiny_images()
    task = tiny_task(1, model=model)
    network: Any = copy_with(model, task.initial)
    start = {"w": section(task.initial, "body"), "head": section(task.initial, "head")}
    client = visit(task, data, 0)
    up = FedPAC(augmented=True).local(client, Message(**start))
    x, y = client.train_set
    for part, purpose, body in (("statistics", "head", task.initial), ("centroids", "centroids", up.weights("w"))):
        seen = crop_and_flip(x, client.stream(f"{purpose}/augment"), client.data.train.black())
        network.load_state_dict({**task.initial, **body})
        z = network.body(seen)
        means = torch.stack([z[y == k].mean(dim=0) for k in range(CLASSES)])
        torch.testing.assert_close(up.weights(part)["means"].float(), means)
    plain = FedPAC().local(visit(task, data, 0), Message(**start))
    assert not torch.equal(plain.weights("statistics")["means"], up.weights("statistics")["means"])


def literal_fedpac(data, rounds, lam, head_lr):
    """Algorithm 1 with loops over classes, samples and pairs, and cvxpy for the weights."""
    m = len(data)
    task = tiny_task(m, rounds)
    body: Weights = section(task.initial, "body")
    heads = [section(task.initial, "head") for _ in data]
    centroids: list[Tensor | None] = [None] * CLASSES
    for t in range(1, rounds + 1):
        bodies, trained, mu, V, prior, local_c, counts = [], [], [], [], [], [], []
        for i in range(m):
            client = visit(task, data, i, round=t)
            x, y = client.train_set
            model = copy_with(task.model, {**body, **heads[i]}).train()
            z = model.body(x).detach().double()
            prior.append([float((y == k).double().mean()) for k in range(CLASSES)])
            mu.append([z[y == k].mean(0) if (y == k).any() else torch.zeros(FEATURES).double() for k in range(CLASSES)])
            V.append(
                sum(float(f @ f) for f in z) / len(y)
                - sum(p**2 * float(v @ v) for p, v in zip(prior[i], mu[i], strict=True))
            )
            literal_sgd(model, x, y, batches_of(client, 1, "head"), trained="head.", lr=head_lr)

            def loss(model, xb, yb, t=t, own=mu[i]):
                f = model.body(xb)
                value = F.cross_entropy(model.head(f), yb)
                if t > 1:
                    target = [centroids[k] if centroids[k] is not None else own[k].float() for k in yb]
                    value = value + lam * sum(
                        ((a - b) ** 2).sum() / FEATURES for a, b in zip(f, target, strict=True)
                    ) / len(yb)
                return value

            w = literal_sgd(model, x, y, batches_of(client, purpose="body"), loss=loss, trained="body.")
            bodies.append(section(w, "body"))
            trained.append(section(w, "head"))
            f = model.body(x).detach()
            local_c.append([f[y == k].mean(0) if (y == k).any() else None for k in range(CLASSES)])
            counts.append([int((y == k).sum()) for k in range(CLASSES)])
        sizes = [sum(c) for c in counts]
        body = literal_mean(bodies, sizes)
        for k in range(CLASSES):
            holders = [i for i in range(m) if counts[i][k]]
            if holders:
                total = sum(counts[i][k] for i in holders)
                centroids[k] = sum(counts[i][k] / total * local_c[i][k] for i in holders)
        alpha = np.stack([literal_weights(i, mu, prior, V, sizes) for i in range(m)])
        heads = [
            {name: sum(float(alpha[i, j]) * trained[j][name] for j in range(m)) for name in trained[0]}
            for i in range(m)
        ]
    return body, heads, centroids, alpha


def literal_weights(i, mu, prior, V, sizes):
    """argmin of eq. (quadrat), term by term."""
    m = len(sizes)
    D = np.zeros((m, m))
    for j in range(m):
        for jj in range(m):
            for y in range(CLASSES):
                a = prior[i][y] * mu[i][y] - prior[j][y] * mu[j][y]
                b = prior[i][y] * mu[i][y] - prior[jj][y] * mu[jj][y]
                D[j, jj] += float(torch.trace(torch.outer(a, b)))
    x = cp.Variable(m)
    P = D + np.diag([v / n for v, n in zip(V, sizes, strict=True)]) + 1e-12 * np.eye(m)
    cp.Problem(cp.Minimize(cp.quad_form(x, cp.psd_wrap(P))), [x >= 0, cp.sum(x) == 1]).solve(solver="CLARABEL")
    value = np.where(x.value < 1e-3, 0, x.value)
    return value / value.sum()


def weight_matrix(server: Server) -> np.ndarray:
    """Of the clients that took part, in their order."""
    rows = FedPAC().peer_weights(server)
    place = {client: at for at, client in enumerate(dict.fromkeys(i for i, _, _ in rows))}
    alpha = np.zeros((len(place), len(place)))
    for i, j, weight in rows:
        alpha[place[i], place[j]] = weight
    return alpha


# --- identities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [{"lam": 0.0}, {"alignment": False}])
def test_without_alignment_and_collaboration_it_is_fedrep(off) -> None:
    ours = run_federation(FedPAC(**off, collaboration=False), rounds=3)
    rep = run_federation(FedRep(), rounds=3)
    assert_equal(section(ours.server.weights("w"), "body"), rep.server.weights("w"))
    assert [r.scores for r in ours.reports] == [r.scores for r in rep.reports]


def test_alignment_and_collaboration_each_change_the_result() -> None:
    results = [
        run_federation(FedPAC(alignment=a, collaboration=c), rounds=3).bytes()["server"]
        for a in (False, True)
        for c in (False, True)
    ]
    assert len(set(results)) == 4


def test_equal_clients_weigh_each_other_by_their_variance() -> None:
    """Clients with the same data have equal h and V, so all weights are equal."""
    one = tiny_data(sizes=(12,))[0]
    done = run_federation(FedPAC(), rounds=1, data=[one, one, one])
    np.testing.assert_allclose(weight_matrix(done.server), np.full((3, 3), 1 / 3), atol=1e-9)


def test_clients_with_nothing_in_common_keep_their_own_head() -> None:
    data = tiny_data(sizes=(40, 40, 40), classes_of=[[0], [1], [2]])
    done = run_federation(FedPAC(), rounds=1, data=data)
    np.testing.assert_allclose(weight_matrix(done.server), np.eye(3), atol=0.05)


def test_permuting_the_clients_permutes_the_weights() -> None:
    """Statistics and heads stay with their client (misaligned in two public implementations)."""
    data = tiny_data(sizes=(7, 12, 5, 9))
    order = [2, 0, 3, 1]
    task = tiny_task(4, 1)
    method = FedPAC()
    replies = {i: method.local(visit(task, data, i), initial_message(method, task)) for i in range(4)}
    straight, shuffled = Server(task), Server(task)
    for server in (straight, shuffled):
        method.setup(server)
    method.merge(straight, replies)
    method.merge(shuffled, {i: replies[i] for i in order})
    np.testing.assert_allclose(weight_matrix(shuffled), weight_matrix(straight)[np.ix_(order, order)], atol=1e-9)
    for i in range(4):
        assert_close(straight.weights(f"head.{i}"), shuffled.weights(f"head.{i}"))


def initial_message(method: FedPAC, task) -> Message:
    server = Server(task)
    method.setup(server)
    return method.send(server, 0)


# --- what went wrong elsewhere ------------------------------------------------------------------------------------


def test_weights_are_indexed_by_client_and_not_by_position() -> None:
    """With some clients away, the combined head goes to the client it was computed for; the others keep theirs."""
    data = tiny_data(sizes=(7, 12, 5, 9))
    task = tiny_task(4, 3)
    method = FedPAC()
    server = Server(task)
    method.setup(server)
    down = method.send(server, 0)
    replies = {i: method.local(visit(task, data, i), down) for i in (1, 3)}
    method.merge(server, replies)
    alpha = weight_matrix(server)
    for row, i in enumerate((1, 3)):
        expected: dict[str, Any] = {
            name: sum(float(a) * up.weights("head")[name] for a, up in zip(alpha[row], replies.values(), strict=True))
            for name in replies[1].weights("head")
        }
        assert_close(method.send(server, i).weights("head"), expected)
    for i in (0, 2):
        assert_equal(method.send(server, i).weights("head"), section(task.initial, "head"))
    assert {(i, j) for i, j, _ in method.peer_weights(server)} <= {(1, 1), (1, 3), (3, 1), (3, 3)}


def test_the_first_round_is_not_aligned() -> None:
    plain = run_federation(FedPAC(alignment=False), rounds=1)
    aligned = run_federation(FedPAC(lam=5.0), rounds=1)
    assert_equal(plain.server.weights("w"), aligned.server.weights("w"))


def test_a_class_missing_in_a_round_keeps_its_centroid() -> None:
    data = tiny_data(sizes=(8, 8), classes_of=[[0, 1], [1, 2]])
    task, method = tiny_task(2, 3), FedPAC()
    server = Server(task)
    method.setup(server)
    down = method.send(server, 0)
    method.merge(server, {i: method.local(visit(task, data, i), down) for i in (0, 1)})
    before = server.weights("centroids")["means"].clone()
    server.round = 2
    method.merge(server, {1: method.local(visit(task, data, 1, round=2), method.send(server, 1))})
    after = server.weights("centroids")
    assert torch.equal(after["means"][0], before[0])
    assert not torch.equal(after["means"][2], before[2])
    assert after["counts"].tolist()[3] == 0


def test_a_class_without_global_centroid_is_aligned_with_the_clients_own() -> None:
    """Not skipped, and not pulled to zero."""
    data = tiny_data(sizes=(8, 8), classes_of=[[0, 1], [1, 2]])
    task, method = tiny_task(2, 3), FedPAC(lam=2.0)
    server = Server(task)
    method.setup(server)
    method.merge(server, {1: method.local(visit(task, data, 1), method.send(server, 1))})
    client = visit(task, data, 0, round=2)  # its class 0 has no global centroid yet
    down = method.send(server, 0)
    x, y = client.train_set
    before: Any = copy_with(task.model, method.assemble(client, down))
    z = before.body(x).detach()
    own, shared = z[y == 0].mean(0), down.weights("centroids")["means"][1]
    targets = torch.stack([own if k == 0 else shared for k in y])

    model = copy_with(task.model, method.assemble(client, down))
    literal_sgd(model, x, y, batches_of(client, 1, "head"), trained="head.", lr=0.1)

    def step(model, index):
        f = model.body(x[index])
        return F.cross_entropy(model.head(f), y[index]) + 2.0 * ((f - targets[index]) ** 2).mean()

    w = literal_sgd(
        model, torch.arange(len(y)), y, batches_of(client, purpose="body"),
        loss=lambda model, index, _: step(model, index), trained="body.",
    )  # fmt: skip
    assert_close(method.local(visit(task, data, 0, round=2), down).weights("w"), section(w, "body"))


@pytest.mark.parametrize("covariance", ["identity", "pooled", "local"])
@pytest.mark.parametrize("centre", [False, True])
def test_every_form_of_the_covariance_gives_usable_weights(covariance, centre) -> None:
    done = run_federation(FedPAC(covariance=covariance, centre=centre), rounds=2)
    alpha = weight_matrix(done.server)
    np.testing.assert_allclose(alpha.sum(1), 1)
    assert (alpha >= 0).all()


def test_the_settings_are_the_papers() -> None:
    method = make_method("fedpac")
    assert isinstance(method, FedPAC)
    assert (method.lam, method.head_epochs, method.head_lr, method.covariance) == (1.0, 1, 0.1, "identity")
    assert method.reported == "received"
