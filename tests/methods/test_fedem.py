"""FedEM and FedEM-FT against their equations and FedAvg."""

import pytest
import torch
import torch.nn.functional as F

from fedpac.methods.fedavg import FedAvg
from fedpac.methods.fedem import FedEM, expectation
from fedpac.methods.fedem_ft import FedEMFT
from fedpac.models import copy_with
from helpers import (
    assert_close,
    assert_equal,
    batches_of,
    literal_mean,
    literal_sgd,
    run_federation,
    tiny_data,
    tiny_model,
    tiny_task,
    visit,
)


def components(method, data):
    federation = run_federation(method, data=data, rounds=1).federation
    federation.method.setup(federation.server)
    return [federation.server.weights(f"w{m}") for m in range(method.components)]


def e_step(model, w, x, y, pi):
    """Sample by sample, component by component."""
    q = torch.zeros(len(y), len(w))
    for s in range(len(y)):
        for m, each in enumerate(w):
            likelihood = copy_with(model, each)(x[s : s + 1]).softmax(1)[0, y[s]]
            q[s, m] = pi[m] * likelihood.item()
        q[s] /= q[s].sum()
    return q, [float(q[:, m].mean()) for m in range(len(w))]


def m_step(model, w, x, y, q, batches):
    tuned = []
    for m, each in enumerate(w):
        module = copy_with(model, each)
        numbered = torch.cat([x, torch.arange(len(y))[:, None]], dim=1)  # so that the loss knows whose weight to use

        def loss(model, xs, ys, m=m):
            losses = F.cross_entropy(model(xs[:, :-1]), ys, reduction="none")
            return sum(q[int(s), m] * losses[at] for at, s in enumerate(xs[:, -1])) / len(ys)

        tuned.append(literal_sgd(module, numbered, y, batches, loss=loss))
    return tuned


def test_two_rounds_equal_the_literal_algorithm():
    data = tiny_data()
    task = tiny_task(len(data))
    w = components(FedEM(), data)
    pi = [[1 / 3] * 3 for _ in data]
    for t in (1, 2):
        answers = []
        for i, own in enumerate(data):
            x, y = own.train.tensors()
            q, pi[i] = e_step(task.model, w, x, y, pi[i])
            answers.append(m_step(task.model, w, x, y, q, batches_of(visit(task, data, i, t))))
        sizes = [len(own.train) for own in data]
        w = [literal_mean([a[m] for a in answers], sizes) for m in range(3)]
    run = run_federation(FedEM(), data=data)
    for m in range(3):
        assert_close(run.server.weights(f"w{m}"), w[m])
    for i in range(len(data)):
        torch.testing.assert_close(run.states[i]["pi"].float(), torch.tensor(pi[i]), rtol=1e-4, atol=1e-5)

    # what a client predicts with: another E-step with the new components, then probabilities are mixed
    x, y = data[1].train.tensors()
    _, mine = e_step(task.model, w, x, y, pi[1])
    expected = sum(p * copy_with(task.model, each)(x).softmax(1) for p, each in zip(mine, w, strict=True))
    down = FedEM().send(run.server, 1)
    predictor = FedEM().received(visit(run.task, data, 1, 3, run.states[1]), down).eval()
    torch.testing.assert_close(predictor(x).exp(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(predictor(x).exp().sum(1), torch.ones(len(y)))


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_one_component_is_fedavg(model):
    one = run_federation(FedEM(components=1), model=tiny_model(model), participation=0.5)
    fedavg = run_federation(FedAvg(), model=tiny_model(model), participation=0.5)
    assert_equal(one.server.weights("w0"), fedavg.server.weights("w"))
    assert [s.accuracy for r in one.reports for s in r.scores] == [s.accuracy for r in fedavg.reports for s in r.scores]


def test_shares_sum_to_one_and_are_kept():
    """One public implementation forgets them: its shares are equal again in every round and at test."""
    run = run_federation(FedEM(), rounds=3, participation=0.5)
    for state in run.states.values():
        torch.testing.assert_close(state["q"].sum(1), torch.ones(len(state["q"]), dtype=torch.float64))
        assert float(state["pi"].sum()) == pytest.approx(1)
        assert not torch.allclose(state["pi"], torch.full((3,), 1 / 3, dtype=torch.float64), atol=1e-3)


def test_an_e_step_never_lowers_the_likelihood():
    generator = torch.Generator().manual_seed(0)
    for scale in (0.1, 1.0, 30.0):
        losses = scale * torch.rand(50, 4, generator=generator, dtype=torch.float64)
        pi = torch.full((4,), 0.25, dtype=torch.float64)
        for _ in range(20):
            before = (pi.log() - losses).logsumexp(1).sum()
            _, pi = expectation(losses, pi)
            after = (pi.log() - losses).logsumexp(1).sum()
            assert after >= before - 1e-10
        assert float(pi.sum()) == pytest.approx(1)


def test_hopeless_components_and_samples_stay_finite():
    losses = torch.tensor([[5000.0, 6000.0], [9000.0, 2.0]], dtype=torch.float64)
    q, pi = expectation(losses, torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert q.tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert pi.tolist() == [1.0, 0.0]


def test_a_client_that_never_took_part_runs_an_e_step_before_it_predicts():
    data = tiny_data()
    run = run_federation(FedEM(), data=data, rounds=4)
    predictor = FedEM().received(visit(run.task, data, 1, 5), FedEM().send(run.server, 1))
    assert not torch.allclose(predictor.log_pi.exp(), torch.full((3,), 1 / 3, dtype=torch.float64), atol=1e-3)


def test_fine_tuning_trains_copies_with_the_same_shares():
    data = tiny_data()
    task = tiny_task(len(data))
    x, y = data[1].train.tensors()
    w = components(FedEM(), data)
    down = FedEM().send(run_federation(FedEM(), data=data).server, 1)
    for m in range(3):
        w[m] = down.weights(f"w{m}")
    q, pi = e_step(task.model, w, x, y, [1 / 3] * 3)
    for epochs in (0, 1, 3):
        tuned = m_step(task.model, w, x, y, q, batches_of(visit(task, data, 1), epochs)) if epochs else w
        expected = sum(p * copy_with(task.model, each)(x).softmax(1) for p, each in zip(pi, tuned, strict=True))
        method, client = FedEMFT(epochs=epochs), visit(task, data, 1)
        predictor = method.personal(client, down, method.local(client, down)).eval()
        torch.testing.assert_close(predictor(x).exp(), expected, rtol=1e-4, atol=1e-5)


def test_fine_tuning_is_fedems_by_product_and_never_reaches_the_server():
    plain, tuned = run_federation(FedEM()), run_federation(FedEMFT())
    same = run_federation(FedEMFT(epochs=2))  # as many as the recipe has, but trained for prediction only
    assert plain.bytes() == tuned.bytes() == same.bytes()
    assert [r.scores for r in plain.reports] == [r.scores for r in tuned.reports] == [r.scores for r in same.reports]


class Alike(FedEM):
    """All components start from the same weights."""

    def setup(self, server):
        server.state.update({f"w{m}": server.task.initial for m in range(self.components)})


def test_components_that_start_alike_are_fedavg_at_a_share_of_the_rate():
    """What the table `starts` relies on: a component's loss has the weight 1/M, its decay the whole one."""
    data = tiny_data()
    alike = run_federation(Alike(), data=data, rounds=3, lr=0.06, weight_decay=0.01)
    fedavg = run_federation(FedAvg(), data=data, rounds=3, lr=0.02, weight_decay=0.03)
    for m in range(3):
        assert_close(alike.server.weights(f"w{m}"), fedavg.server.weights("w"))
