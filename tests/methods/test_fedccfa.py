"""FedCCFA against its equations, and its groups against scikit-learn's DBSCAN."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import DBSCAN

from fedpac.message import Message
from fedpac.methods.fedccfa import FedCCFA, neighbours
from fedpac.models import copy_with, section
from helpers import (
    CLASSES,
    assert_close,
    batches_of,
    literal_mean,
    literal_sgd,
    run_federation,
    tiny_data,
    tiny_task,
    visit,
)


def literal_groups(rows, eps):
    """Distances with three loops, then DBSCAN."""
    m = len(rows)
    cos = [[float(F.cosine_similarity(a, b, dim=0)) for b in rows] for a in rows]
    distance = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            others = [z for z in range(m) if z not in (i, j)]
            if i != j:
                distance[i, j] = sum(abs(cos[i][z] - cos[j][z]) for z in others) / len(others)
    return DBSCAN(eps=eps, min_samples=1, metric="precomputed").fit(distance).labels_


def literal_ccfa(data, rounds, method):
    task, m = tiny_task(len(data), rounds), len(data)
    body, heads = section(task.initial, "body"), [section(task.initial, "head")] * m
    anchors = [None] * m
    for t in range(1, rounds + 1):
        bodies, trained, rows, means, counts = [], [], [], [], []
        for i, own in enumerate(data):
            client = visit(task, data, i, t)
            x, y = own.train.tensors()
            held = sorted(set(y.tolist()))
            each = min(5, min(int((y == k).sum()) for k in held))
            order = torch.randperm(len(y), generator=client.stream("balanced")).tolist()
            chosen = [s for k in held for s in [s for s in order if y[s] == k][:each]]
            turn = torch.randperm(len(chosen), generator=client.stream("balanced order")).tolist()
            batches = torch.tensor([chosen[at] for at in turn]).split(4)
            start = copy_with(task.model, {**body, **section(task.initial, "head")})
            rows.append(literal_sgd(start, x, y, batches, trained="head.", lr=0.1))
            model = copy_with(task.model, {**body, **heads[i]})
            literal_sgd(model, x, y, batches_of(client, 1, "head"), trained="head.", lr=0.1)
            p = [float((y == k).double().mean()) for k in held]
            strength = -sum(q * np.log(q) for q in p) / method.gamma

            def loss(model, xb, yb, t=t, mine=anchors[i], strength=strength):
                z = model.body(xb)
                value = F.cross_entropy(model.head(z), yb)
                if t < method.begin:
                    return value
                known = [k for k in range(CLASSES) if mine[k] is not None]
                for f, k in zip(z, yb.tolist(), strict=True):
                    scores = torch.stack([F.cosine_similarity(f, mine[j], dim=0) for j in known]) / method.temperature
                    value = value - strength * scores.log_softmax(0)[known.index(k)] / len(yb)
                return value

            w = literal_sgd(model, x, y, batches_of(client, purpose="body"), loss=loss, trained="body.")
            bodies.append(section(w, "body"))
            trained.append(section(w, "head"))
            z = copy_with(task.model, w).body(x).detach()
            counts.append([int((y == k).sum()) for k in range(CLASSES)])
            means.append([z[y == k].mean(0) if (y == k).any() else None for k in range(CLASSES)])
        body = literal_mean(bodies, [sum(c) for c in counts])
        heads = [{name: tensor.clone() for name, tensor in head.items()} for head in trained]
        anchors = [[None] * CLASSES for _ in data]
        for k in range(CLASSES):
            holders = [i for i in range(m) if counts[i][k]]
            if not holders:
                continue
            vectors = [torch.cat([rows[i]["head.weight"][k], rows[i]["head.bias"][k : k + 1]]) for i in holders]
            labels = literal_groups(vectors, method.eps)
            for i in range(m):
                group = holders
                if i in holders:
                    group = [j for j, label in zip(holders, labels, strict=True) if label == labels[holders.index(i)]]
                total = sum(counts[j][k] for j in group)
                anchors[i][k] = sum(counts[j][k] / total * means[j][k] for j in group)
                for name in heads[i]:
                    heads[i][name][k] = sum(counts[j][k] / total * trained[j][name][k] for j in group)
    return body, heads


@pytest.mark.parametrize("eps", [0.02, 0.1, 1.0])
def test_three_rounds_equal_the_literal_algorithm(eps):
    data = tiny_data((7, 12, 3, 9, 8), [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2], [0, 1, 2]])
    method = FedCCFA(eps=eps, gamma=1.0, begin=2)
    run = run_federation(method, data=data, rounds=3)
    body, heads = literal_ccfa(data, 3, method)
    assert_close(run.server.weights("w"), body)
    for i, head in enumerate(heads):
        assert_close(run.server.weights(f"head.{i}"), head)


def test_groups_are_dbscans():
    stream = torch.Generator().manual_seed(0)
    rows = torch.cat([base + 0.05 * torch.randn(5, 6, generator=stream) for base in (torch.eye(6)[0], torch.eye(6)[3])])
    found = connected_components(neighbours(rows.double(), 0.1).numpy(), directed=False)[1]
    labels = literal_groups(list(rows.double()), 0.1)
    assert [[a == b for b in found] for a in found] == [[a == b for b in labels] for a in labels]
    assert len(set(found)) == 2


def test_clients_that_swap_two_labels_part_for_these_and_stay_together_for_the_rest():
    swap = torch.tensor([1, 0, 2, 3])
    data = tiny_data((40,) * 6, [[0, 1, 2, 3]] * 6, relabel=[None, None, None, swap, swap, swap])
    run = run_federation(FedCCFA(balanced=10, eps=0.05), data=data, rounds=7, epochs=3)
    heads = [run.server.weights(f"head.{i}")["head.weight"] for i in range(6)]
    assert torch.equal(heads[0], heads[1])
    for k in range(CLASSES):
        assert torch.equal(heads[0][k], heads[3][k]) == (k > 1)


def test_a_client_that_lacks_a_class_hears_all_that_have_it():
    data = tiny_data((8, 8, 8), [[0, 1], [1, 2], [0, 2]])
    task, method = tiny_task(3), FedCCFA(eps=0.0)
    run = run_federation(method, data=data, rounds=1)
    first = Message(w=section(task.initial, "body"), head=section(task.initial, "head"))
    ups = [method.local(visit(task, data, i), first) for i in range(3)]
    counts = [4, 0, 4]
    rows = [c / 8 * up.weights("head")["head.weight"][0] for c, up in zip(counts, ups, strict=True)]
    torch.testing.assert_close(run.server.weights("head.1")["head.weight"][0], sum(rows))


def test_there_is_no_alignment_before_its_round():
    early, late = (run_federation(FedCCFA(begin=begin), rounds=2).bytes()["server"] for begin in (3, 21))
    assert early == late
    assert run_federation(FedCCFA(begin=2), rounds=2).bytes()["server"] != late
