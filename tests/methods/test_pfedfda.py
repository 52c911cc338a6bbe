"""pFedFDA against its equations, with torch's own normal distribution."""

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import MultivariateNormal

from fedpac.errors import ConfigError
from fedpac.methods.pfedfda import Gaussian, PFedFDA, estimate, mixture
from fedpac.models import copy_with, section
from fedpac.server import Server
from helpers import (
    CLASSES,
    FEATURES,
    assert_close,
    batches_of,
    literal_sgd,
    run_federation,
    tiny_data,
    tiny_task,
    visit,
)


def shrunk(covariance, ridge):
    return (
        covariance + ridge * max(1.0, float(covariance.trace() / len(covariance))) * torch.eye(len(covariance)).double()
    )


def log_joint(z, means, covariance, prior):
    """log p_k + log N(z; mu_k, S) of every class."""
    return torch.stack(
        [MultivariateNormal(mean, covariance).log_prob(z) + p for mean, p in zip(means, prior, strict=True)], dim=1
    )


def test_the_linear_classifier_is_the_posterior_of_the_gaussian_model():
    stream = torch.Generator().manual_seed(1)
    z = torch.randn(40, 6, generator=stream, dtype=torch.float64)
    y = torch.randint(3, (40,), generator=stream)
    found = estimate(z, y, Gaussian(torch.zeros(3, 6).double(), torch.eye(6).double()))
    means = torch.stack([z[y == k].mean(0) for k in range(3)])
    spread = sum(torch.outer(a - means[k], a - means[k]) for a, k in zip(z, y, strict=True)) / 40
    torch.testing.assert_close(found.means, means)
    torch.testing.assert_close(found.covariance, spread)
    prior = torch.tensor([0.5, 0.3, 0.2]).double().log()
    weight, bias = found.linear(0.1, prior)
    expected = log_joint(z, means, shrunk(spread, 0.1), prior).log_softmax(1)
    torch.testing.assert_close((z @ weight.T + bias).log_softmax(1), expected)


def literal_gaussian(method, client, body, model, shared):
    """Own estimates mixed with the shared ones by the share that predicts best, fold by fold."""
    x, y = client.train_set
    z = copy_with(model, body).body(x).detach().double()
    prior = torch.tensor([max(float((y == k).double().mean()), 1e-12) for k in range(CLASSES)]).double().log()
    half = torch.randperm(client.n, generator=client.stream("folds")) < client.n // 2

    def own(kept):
        means = torch.stack([z[kept & (y == k)].mean(0) if (kept & (y == k)).any() else shared[0][k] for k in range(4)])
        gaps = [z[s] - means[y[s]] for s in range(len(y)) if kept[s]]
        return means, sum(torch.outer(g, g) for g in gaps) / len(gaps)

    def mixed(b, kept):
        means, spread = own(kept)
        return b * means + (1 - b) * shared[0], b * spread + (1 - b) * shared[1]

    losses = []
    for b in [step / method.grid for step in range(method.grid + 1)]:
        total = 0.0
        for kept in (half, ~half):
            if kept.any() and not kept.all():
                means, spread = mixed(b, kept)
                scores = log_joint(z[~kept], means, shrunk(spread, method.ridge), prior)
                total += float(F.cross_entropy(scores, y[~kept], reduction="sum"))
        losses.append(total)
    best = min(range(len(losses)), key=losses.__getitem__)
    return mixed(best / method.grid, torch.ones(len(y), dtype=torch.bool))


def test_two_rounds_equal_the_literal_algorithm():
    data, method = tiny_data(), PFedFDA(ridge=0.2, grid=4)
    run = run_federation(method, data=data)
    task, sizes = run.task, [len(own.train) for own in data]
    body = section(task.initial, "body")
    first = Server(task)
    method.setup(first)
    shared = (first.weights("gaussian")["means"], torch.eye(FEATURES).double())
    for t in (1, 2):
        bodies, gaussians = [], []
        for i, own in enumerate(data):
            x, y = own.train.tensors()
            prior = torch.tensor([max(float((y == k).double().mean()), 1e-12) for k in range(CLASSES)]).double().log()

            def loss(model, xb, yb, prior=prior, shared=shared):
                scores = log_joint(model.body(xb).double(), shared[0], shrunk(shared[1], 0.2), prior)
                return F.cross_entropy(scores, yb).float()

            model = copy_with(task.model, {**task.initial, **body})
            w = literal_sgd(model, x, y, batches_of(visit(task, data, i, t)), loss=loss, trained="body.")
            bodies.append(section(w, "body"))
            gaussians.append(literal_gaussian(method, visit(task, data, i, t), w, task.model, shared))
        total = sum(sizes)
        body = {name: sum(n / total * w[name] for n, w in zip(sizes, bodies, strict=True)) for name in body}
        shared = tuple(sum(n / total * g[at] for n, g in zip(sizes, gaussians, strict=True)) for at in (0, 1))
    assert_close(run.server.weights("w"), body)
    torch.testing.assert_close(run.server.weights("gaussian")["means"], shared[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run.server.weights("gaussian")["covariance"], shared[1], rtol=1e-4, atol=1e-5)


def test_its_share_is_chosen_on_data_that_the_estimate_has_not_seen():
    """Many samples far from the shared means: their own estimate. A single one: the shared one, whatever it fits."""
    method, data = PFedFDA(), tiny_data((60, 1))
    task = tiny_task(2, sample=data[0].train.tensors()[0][0])
    wrong = Gaussian(10 + torch.zeros(CLASSES, FEATURES).double(), torch.eye(FEATURES).double())
    many, one = (method.interpolated(visit(task, data, i), task.initial, wrong) for i in (0, 1))
    assert float((many.means[:2] - wrong.means[:2]).abs().min()) > 5
    torch.testing.assert_close(one.means, wrong.means)
    torch.testing.assert_close(many.means[3], wrong.means[3])  # a class it does not have


def test_mixtures_end_where_they_should():
    own = Gaussian(torch.ones(2, 3).double(), 2 * torch.eye(3).double())
    shared = Gaussian(torch.zeros(2, 3).double(), torch.eye(3).double())
    for share, expected in ((0.0, shared), (1.0, own)):
        torch.testing.assert_close(mixture(share, own, shared).covariance, expected.covariance)
        torch.testing.assert_close(mixture(share, own, shared).means, expected.means)


def test_without_a_sample_of_the_data_it_says_what_it_needs():
    with pytest.raises(ConfigError, match="feature dimension"):
        PFedFDA().setup(Server(tiny_task(2)))
