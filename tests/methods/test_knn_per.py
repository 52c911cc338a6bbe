"""kNN-Per against loops over neighbours, and the bugs others made with it."""

import math

import pytest
import torch

from fedpac.methods.fedavg import FedAvg
from fedpac.methods.knn_per import KNNPer
from fedpac.training import logits
from helpers import CLASSES, assert_equal, run_federation, tiny_data, visit


@pytest.fixture
def trained():
    data = tiny_data((7, 24, 1, 9), tests=30)
    return data, run_federation(FedAvg(), data=data)


def neighbours_by_hand(keys, labels, z, k, scale):
    """p_knn of one feature vector, sample by sample."""
    squared = sorted((sum((a - b) ** 2 for a, b in zip(key, z, strict=True)), j) for j, key in enumerate(keys))
    p = [0.0] * CLASSES
    for distance, j in squared[:k]:
        p[labels[j]] += math.exp(-distance / (len(z) * scale))
    return [share / sum(p) for share in p]


def by_hand(keys, labels, z, scores, lam, k=10, scale=1.0):
    p_knn = neighbours_by_hand(keys, labels, z, k, scale)
    total = sum(math.exp(s) for s in scores)
    return [lam * p + (1 - lam) * math.exp(s) / total for p, s in zip(p_knn, scores, strict=True)]


def parts(data, finished, i):
    client = visit(finished.task, data, i, 3)
    model = client.own_model(finished.server.weights("w"))
    (x, y), (tx, _) = client.train_set, client.test_set
    keys, z = logits(model.body, x), logits(model.body, tx)
    return client, keys.tolist(), y.tolist(), z.tolist(), logits(model, tx).tolist(), logits(model, x).tolist()


@pytest.mark.parametrize("i", [0, 1, 2])  # fewer samples than neighbours, more, and one
def test_probabilities_equal_the_literal_formula(trained, i):
    data, finished = trained
    client, keys, labels, z, scores, _ = parts(data, finished, i)
    method = KNNPer(k=8, lam=0.65, scale=0.3)
    p = method.received(client, method.send(finished.server, i))(client.test_set[0]).exp()
    expected = [by_hand(keys, labels, f, s, 0.65, 8, 0.3) for f, s in zip(z, scores, strict=True)]
    torch.testing.assert_close(p, torch.tensor(expected).double(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(p.sum(1), torch.ones(30).double())


def test_without_neighbours_it_is_fedavg():
    one, other = run_federation(KNNPer(lam=0)), run_federation(FedAvg())
    assert_equal(one.server.weights("w"), other.server.weights("w"))
    for mine, plain in zip(one.reports[-1].scores, other.reports[-1].scores, strict=True):
        assert mine.accuracy == plain.accuracy
        assert abs(mine.loss - plain.loss) < 1e-6


def test_lambda_is_chosen_by_leaving_training_samples_out(trained):
    data, finished = trained
    candidates = (0.0, 0.3, 0.6, 0.9)
    chosen = set()
    for i in (0, 1, 3):
        client, keys, labels, _, _, scores = parts(data, finished, i)
        client.__dict__["test_set"] = None  # whoever looks at it now fails

        def quality(lam, keys=keys, labels=labels, scores=scores):
            right, log_likelihood = 0, 0.0
            for j, z in enumerate(keys):
                others = [key for m, key in enumerate(keys) if m != j], [y for m, y in enumerate(labels) if m != j]
                p = by_hand(*others, z, scores[j], lam, k=3)
                right += max(range(CLASSES), key=p.__getitem__) == labels[j]
                log_likelihood += math.log(p[labels[j]])
            return right, log_likelihood

        predictor = KNNPer(lam=candidates, k=3).received(client, FedAvg().send(finished.server, i))
        assert predictor.lam == max(candidates, key=quality)
        chosen.add(predictor.lam)
    assert len(chosen) > 1  # clients differ, so the choice is a client's own


def test_the_paper_s_candidates_are_the_default():
    assert KNNPer().lam == (0.5, 0.6, 0.7, 0.8)


def test_the_memory_is_measured_in_samples_and_made_anew_for_every_body(trained):
    data, finished = trained
    client = visit(finished.task, data, 1, 3)
    method = KNNPer(capacity=0.25)
    first = method.received(client, method.send(finished.server, 1))
    assert len(first.keys) == 6
    later = method.received(visit(finished.task, data, 1, 4), FedAvg().send(finished.server, 1))
    assert torch.equal(first.keys, later.keys)  # the same samples in every round
    other = {name: tensor + 0.1 for name, tensor in finished.server.weights("w").items()}
    assert not torch.equal(method.predictor(client, client.own_model(other)).keys, first.keys)


def test_a_sample_far_from_all_others_still_has_probabilities(trained):
    data, finished = trained
    method = KNNPer(scale=1e-6)
    client = visit(finished.task, data, 1, 3)
    log_p = method.received(client, method.send(finished.server, 1))(1e3 * client.test_set[0])
    assert log_p.isfinite().any(dim=1).all()
    assert not log_p.isnan().any()
