"""FedProto-G and FedProto-L against their equations written out by hand."""

import pytest
import torch
import torch.nn.functional as F

from fedpac.methods.fedproto_g import FedProtoG
from fedpac.methods.fedproto_l import FedProtoL
from fedpac.methods.local import Local
from fedpac.models import copy_with
from helpers import CLASSES, FEATURES, assert_close, assert_equal, literal_training, run_federation, tiny_data


def pulled(lam, prototypes):
    """Cross-entropy and lam times the mean over batch and dimensions of the squared distance, sample by sample."""

    def loss(model, x, y):
        z = model.body(x)
        gap = sum(
            ((z[j] - prototypes[int(k)]) ** 2).sum() if int(k) in prototypes else torch.zeros(())
            for j, k in enumerate(y)
        )
        return F.cross_entropy(model.head(z), y) + lam * gap / (len(y) * FEATURES)

    return loss


def class_means(task, data, i, w):
    """{class: (mean feature, count)} with the given weights."""
    x, y = data[i].train.tensors()
    z = copy_with(task.model, w).eval().body(x).detach()
    return {k: (z[y == k].mean(0), int((y == k).sum())) for k in range(CLASSES) if (y == k).any()}


@pytest.mark.parametrize(
    ("data", "participation"),
    [(tiny_data(), 0.5), (tiny_data((6, 5, 7), [[0], [1], [2, 1]]), 0.34)],
    ids=["two of four clients", "one of three, who may have a class without prototype"],
)
def test_g_equals_the_literal_algorithm(data, participation):
    """Prototypes are taken after training and weighted by samples; a class without one draws nobody."""
    finished = run_federation(FedProtoG(lam=0.8), rounds=3, data=data, participation=participation)
    task, w, c, undrawn = finished.task, [finished.task.initial for _ in data], {}, 0
    for report in finished.reports:
        means = []
        for i in report.chosen:
            w[i] = literal_training(task, data, i, report.round, w[i], loss=pulled(0.8, c))
            means.append(class_means(task, data, i, w[i]))
            undrawn += bool(c) and not set(means[-1]) <= set(c)
        for k in range(CLASSES):
            having = [m[k] for m in means if k in m]
            if having:  # else the last one stays
                c = {**c, k: sum(n * mean for mean, n in having) / sum(n for _, n in having)}
    for i in range(len(data)):
        assert_close(finished.states[i]["own"], w[i])
    prototypes = finished.server.weights("prototypes")
    assert sorted(c) == prototypes["counts"].nonzero().flatten().tolist() == [0, 1, 2]  # class 3 is nobody's
    for k, mean in c.items():
        assert_close({"c": prototypes["means"][k]}, {"c": mean})
    assert undrawn or participation == 0.5


def test_l_equals_the_literal_algorithm_and_sends_nothing():
    data = tiny_data()
    finished = run_federation(FedProtoL(lam=0.8), rounds=3, data=data)
    for i in range(len(data)):
        w, own = finished.task.initial, {}
        for t in (1, 2, 3):
            w = literal_training(finished.task, data, i, t, w, loss=pulled(0.8, own))
            own = {k: mean for k, (mean, _) in class_means(finished.task, data, i, w).items()}
        assert_close(finished.states[i]["own"], w)
    assert finished.scores()[0][3:5] == run_federation(Local(), data=data).scores()[0][3:5]  # bytes down and up


@pytest.mark.parametrize("method", [FedProtoL, FedProtoG])
def test_without_the_pull_it_is_local_only(method):
    one, other = run_federation(method(lam=0), rounds=3), run_federation(Local(), rounds=3)
    for i in range(4):
        assert_equal(one.states[i]["own"], other.states[i]["own"])
    assert [r.scores for r in one.reports] == [r.scores for r in other.reports]
    pulled_run = run_federation(method(), rounds=3)
    assert pulled_run.reports[0].scores == other.reports[0].scores  # nothing to be drawn to in the first round
    assert pulled_run.reports[1].scores != other.reports[1].scores


def test_g_sends_prototypes_and_no_weights():
    finished = run_federation(FedProtoG(), rounds=2)
    prototypes = CLASSES * (8 + 4 * FEATURES)  # counts and means
    assert [r.bytes_down for r in finished.reports] == [0, 4 * prototypes]
    assert [r.bytes_up for r in finished.reports] == [4 * (prototypes + 8)] * 2


def test_a_class_missing_in_a_round_keeps_its_prototype():
    data = tiny_data((6, 6), [[0, 1], [2, 3]])
    finished = run_federation(FedProtoG(), rounds=2, data=data, participation=0.5)
    assert len(finished.reports[0].chosen) == 1
    finished.federation.task.rounds = 4  # so that round 3 is not the last
    before = {k: t.clone() for k, t in finished.server.weights("prototypes").items()}
    report = finished.federation.step()
    after = finished.server.weights("prototypes")
    absent = [2, 3] if report.chosen == [0] else [0, 1]
    assert torch.equal(after["means"][absent], before["means"][absent])
    assert (after["counts"] > 0).all()
    assert not torch.equal(after["means"], before["means"])
