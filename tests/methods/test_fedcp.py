"""FedCP against its equations."""

import torch
import torch.nn.functional as F
from torch import nn

from fedpac.methods.fedcp import FedCP, Policy, context_of, discrepancy
from fedpac.models import copy_with, section
from fedpac.server import Server
from helpers import (
    FEATURES,
    assert_close,
    assert_equal,
    batches_of,
    literal_mean,
    literal_sgd,
    run_federation,
    tiny_data,
    visit,
)


class Literal(nn.Module):
    """The network of one client, written once more; h is no parameter of it."""

    def __init__(self, model, own, common, policy, context):
        super().__init__()
        self.body, self.own = model.body, nn.Linear(FEATURES, 4)
        self.own.load_state_dict({"weight": own["head.weight"], "bias": own["head.bias"]})
        self.a = nn.Linear(FEATURES, 2 * FEATURES)
        self.a.load_state_dict({"weight": policy["policy.layer.weight"], "bias": policy["policy.layer.bias"]})
        self.g = nn.Parameter(policy["policy.norm.weight"].clone())
        self.b = nn.Parameter(policy["policy.norm.bias"].clone())
        self.common, self.context = common, context

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        z = self.features(x)
        s = self.a(z * self.context)
        s = (s - s.mean(1, keepdim=True)) / (s.var(1, correction=0, keepdim=True) + 1e-5).sqrt() * self.g + self.b
        up, down = s.clamp(min=0).exp().split(FEATURES, dim=1)
        r = up / (up + down)
        fixed = (z * (1 - r)) @ self.common["head.weight"].T + self.common["head.bias"]
        return self.own(z * r) + fixed


def literal_mmd(a, b):
    total = 0
    for width in (10, 15, 20, 50):
        for one, other, sign in ((a, a, 1), (b, b, 1), (a, b, -2)):
            for p in one:
                for q in other:
                    total = total + sign * torch.exp(-((p - q) ** 2).sum() / (2 * width)) / (len(a) * len(b))
    return total


def literal_cp(data, task, w, rounds, lam):
    sizes, own = [len(part.train) for part in data], [None] * len(data)
    for t in range(1, rounds + 1):
        ups = []
        for i, part in enumerate(data):
            x, y = part.train.tensors()
            common = section(w, "head")
            mine = own[i] or common
            total = mine["head.weight"].sum(0)
            start = copy_with(task.model, {name: w[name] for name in task.initial})
            model = Literal(
                copy_with(task.model, {n: w[n] for n in task.initial}), mine, common, w, total / total.norm()
            )

            def loss(model, xb, yb, start=start):
                pull = literal_mmd(model.features(xb), start.body(xb).detach())
                return F.cross_entropy(model(xb), yb) + lam * pull

            done = literal_sgd(model, x, y, batches_of(visit(task, data, i, t)), loss=loss)
            own[i] = {"head.weight": done["own.weight"], "head.bias": done["own.bias"]}
            up = {name: tensor for name, tensor in done.items() if name.startswith("body.")}
            up |= {f"policy.layer.{k}": done[f"a.{k}"] for k in ("weight", "bias")}
            up |= {"policy.norm.weight": done["g"], "policy.norm.bias": done["b"]}
            ups.append(up | {name: (own[i][name] + common[name]) / 2 for name in common})
        w = literal_mean(ups, sizes)
    return w, own


def test_two_rounds_equal_the_literal_algorithm():
    data, method = tiny_data(), FedCP(lam=0.5)
    run = run_federation(method, data=data)
    first = Server(run.task)
    method.setup(first)
    w, own = literal_cp(data, run.task, first.weights("w"), 2, 0.5)
    assert_close(run.server.weights("w"), w)
    for i in range(len(data)):
        assert_close(run.states[i]["own"], own[i])


def test_a_newcomer_has_the_global_head_twice():
    data, method = tiny_data(), FedCP()
    run = run_federation(method, data=data)
    client, down = visit(run.task, data, 0, 3), method.send(run.server, 0)
    model = method.received(client, down)
    z = model.body(data[0].test.tensors()[0])
    bias = down.weights("w")["head.bias"]
    torch.testing.assert_close(model.decide(z), model.head(z) + bias)  # both halves of z under one head


def test_shares_are_between_zero_and_one_and_the_same_at_every_look():
    z = torch.randn(9, FEATURES, generator=torch.Generator().manual_seed(0))
    policy = Policy(FEATURES)
    share = policy(z)
    assert ((share > 0) & (share < 1)).all()
    assert torch.equal(share, policy(z))


def test_the_received_body_and_the_common_head_do_not_move_in_training():
    data, method = tiny_data(), FedCP()
    run = run_federation(method, data=data, rounds=1)
    client, down = visit(run.task, data, 1, 2, dict(run.states[1])), method.send(run.server, 1)
    before = {name: tensor.clone() for name, tensor in down.weights("w").items()}
    up = method.local(client, down)
    assert_equal(dict(down.weights("w")), before)
    expected = {name: (t + before[name]) / 2 for name, t in client.weights("own").items()}
    assert_close(section(up.weights("w"), "head"), expected)


def test_distance_between_samples():
    a = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(discrepancy(a, a), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(discrepancy(a, a + 2), literal_mmd(a, a + 2))


def test_context_of_heads_of_all_kinds():
    assert torch.equal(context_of({}, 3), torch.ones(3))
    torch.testing.assert_close(
        context_of({"head.weight": torch.tensor([[3.0, 0.0], [0.0, 4.0]])}, 2), torch.tensor([0.6, 0.8])
    )
    two = {"head.0.weight": torch.eye(2), "head.2.weight": torch.tensor([[3.0, 4.0]])}
    torch.testing.assert_close(context_of(two, 2), torch.tensor([0.6, 0.8]))
