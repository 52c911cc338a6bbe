"""pFedGraph against its equations, with cvxpy for the graph."""

import cvxpy as cp
import numpy as np
import torch
import torch.nn.functional as F

from fedpac.methods.pfedgraph import PFedGraph
from fedpac.models import copy_with
from helpers import assert_close, assert_equal, batches_of, literal_sgd, run_federation, tiny_data, tiny_task, visit


def flat(w):
    return torch.cat([t.flatten() for t in w.values()])


def literal_graph(start, models, sizes, strength):
    moved = [flat(w).double() - flat(start).double() for w in models]
    share = np.array(sizes) / sum(sizes)
    rows = []
    for i in range(len(models)):
        d = np.array([-float(F.cosine_similarity(moved[i], other, dim=0)) for other in moved])
        a = cp.Variable(len(models))
        objective = d @ a + strength * cp.sum_squares(a - share)
        cp.Problem(cp.Minimize(objective), [a >= 0, cp.sum(a) == 1]).solve(solver="CLARABEL")
        rows.append(a.value)
    return np.stack(rows)


def test_two_rounds_equal_the_literal_algorithm():
    data, lam, strength = tiny_data(), 0.3, 0.5
    task, sizes = tiny_task(len(data)), [len(own.train) for own in data]
    received = [task.initial] * len(data)
    for t in (1, 2):
        trained = []
        for i, own in enumerate(data):
            x, y = own.train.tensors()
            anchor = flat(received[i])

            def loss(model, xb, yb, anchor=anchor):
                own = torch.cat([p.flatten() for p in model.parameters()])
                return F.cross_entropy(model(xb), yb) - lam * F.cosine_similarity(own, anchor, dim=0)

            batches = batches_of(visit(task, data, i, t))
            trained.append(literal_sgd(copy_with(task.model, received[i]), x, y, batches, loss=loss))
        alpha = literal_graph(task.initial, trained, sizes, strength)
        received = [
            {name: sum(float(a) * w[name] for a, w in zip(row, trained, strict=True)) for name in task.initial}
            for row in alpha
        ]
    run = run_federation(PFedGraph(lam=lam, strength=strength), data=data)
    found = np.zeros_like(alpha)
    for i, j, weight in PFedGraph().peer_weights(run.server):
        found[i, j] = weight
    np.testing.assert_allclose(found, alpha, atol=2e-4)
    for i in range(len(data)):
        for name, tensor in run.server.weights(f"w.{i}").items():
            torch.testing.assert_close(tensor, received[i][name], rtol=1e-3, atol=1e-4)


def test_the_local_term_pulls_towards_the_received_direction():
    """With the public code's sign a strong term turns the model away from it."""
    data = tiny_data()
    run = run_federation(PFedGraph(), data=data, rounds=2)
    down = PFedGraph().send(run.server, 1)
    cosines = []
    for lam in (0.0, 5.0):
        up = PFedGraph(lam=lam).local(visit(run.task, data, 1, 3), down)
        cosines.append(float(F.cosine_similarity(flat(up.weights("w")), flat(down.weights("w")), dim=0)))
    assert cosines[1] > cosines[0]


def test_where_sizes_decide_everybody_gets_fedavgs_mean():
    run = run_federation(PFedGraph(strength=1e6, lam=0), rounds=1)
    sizes = np.array([7, 12, 1, 9])
    rows = {(i, j): weight for i, j, weight in PFedGraph().peer_weights(run.server)}
    for i in range(4):
        np.testing.assert_allclose([rows[i, j] for j in range(4)], sizes / sizes.sum(), atol=1e-5)
        assert_close(run.server.weights(f"w.{i}"), run.server.weights("w.0"))


def test_who_stays_away_keeps_his_model():
    data = tiny_data()
    task, method = tiny_task(len(data)), PFedGraph()
    run = run_federation(method, data=data, rounds=1)
    before = run.server.weights("w.2")
    method.merge(run.server, {i: method.local(visit(task, data, i, 2), method.send(run.server, i)) for i in (0, 1)})
    assert_equal(run.server.weights("w.2"), before)
    assert {i for i, _, _ in method.peer_weights(run.server)} == {0, 1}
