"""pFedHN against finite differences and its equations."""

import pytest
import torch

from fedpac.message import Message
from fedpac.methods.fedavg import FedAvg
from fedpac.methods.pfedhn import PFedHN
from fedpac.models import weights_of
from fedpac.server import Server
from fedpac.training import flatten
from helpers import assert_close, assert_equal, run_federation, tiny_data, tiny_model, tiny_task, visit

SMALL = {"hidden": 7, "layers": 2, "embedding": 3}


def ready_server(method, clients=3, seed=0):
    """A server whose hyper-network, embeddings and momenta are all away from their special initial values."""
    server = Server(tiny_task(clients))
    method.setup(server)
    generator = torch.Generator().manual_seed(seed)
    for name in ("psi", "psi_velocity"):
        old = server.weights(name)
        server.state[name] = {n: p + 0.2 * torch.randn(p.shape, generator=generator) for n, p in old.items()}
    server.state["e_velocity"] = 0.1 * torch.randn(clients, 3, generator=generator)
    return server, generator


def answers(server, ids, generator):
    size = len(server.weights("psi")["out.bias"])
    return {i: Message(delta=torch.randn(size, generator=generator), buffers={}, n=1.0 + i) for i in ids}


def written(psi, e):
    """H, layer by layer."""
    a = psi["0.weight"] @ e + psi["0.bias"]
    a = psi["1.weight"] @ a.clamp(min=0) + psi["1.bias"]
    a = psi["2.weight"] @ a.clamp(min=0) + psi["2.bias"]
    return psi["out.weight"] @ a + psi["out.bias"]


@pytest.mark.parametrize("steps", ["sequential", "mean"])
@pytest.mark.parametrize("clip", [50.0, 0.5])
def test_a_round_equals_the_literal_steps(steps, clip):
    method = PFedHN(steps=steps, clip=clip, lr=0.3, **SMALL)
    server, generator = ready_server(method)
    psi = {n: p.clone() for n, p in server.weights("psi").items()}
    speed = {n: p.clone() for n, p in server.weights("psi_velocity").items()}
    e, e_speed = server.tensor("e").clone(), server.tensor("e_velocity").clone()
    replies = answers(server, [0, 2], generator)

    waves = method.waves([0, 2])
    assert waves == ([[0], [2]] if steps == "sequential" else [[0, 2]])
    for wave in waves:
        gradients = {}
        for i in wave:
            leaves = [p.clone().requires_grad_() for p in [*psi.values(), e[i]]]
            theta = written(dict(zip(psi, leaves, strict=False)), leaves[-1])
            g = torch.autograd.grad(theta, leaves, replies[i].tensor("delta"))
            norm = float(torch.cat([each.reshape(-1) for each in g]).norm())
            assert (norm > clip) == (clip == 0.5)
            gradients[i] = [each * min(1.0, clip / norm) for each in g]
        for n, *each in zip(psi, *gradients.values(), strict=False):
            speed[n] = 0.9 * speed[n] + sum(each) / len(wave) + 1e-3 * psi[n]
            psi[n] = psi[n] - 0.3 * speed[n]
        for i in wave:
            e_speed[i] = 0.9 * e_speed[i] + gradients[i][-1] + 1e-3 * e[i]
            e[i] = e[i] - 0.3 * e_speed[i]

        method.merge(server, {i: replies[i] for i in wave})
        assert_close(server.weights("psi"), psi)
        assert_close(server.weights("psi_velocity"), speed)
        torch.testing.assert_close(server.tensor("e"), e)
        torch.testing.assert_close(server.tensor("e_velocity"), e_speed)


def test_each_client_hears_the_network_that_the_one_before_it_has_changed():
    """Steps on gradients of clients that all trained on the same network overshoot: m times the rate, ten times that
    with the momentum."""
    data = tiny_data()
    method = PFedHN(client_lr=0.05)
    run = run_federation(method, rounds=1, data=data)
    server = Server(tiny_task(len(data)))
    method.setup(server)
    for i in range(len(data)):
        method.merge(server, {i: method.local(visit(server.task, data, i), method.send(server, i))})
    assert_equal(run.server.weights("psi"), server.weights("psi"))


def test_its_gradient_is_the_vector_jacobian_product():
    method = PFedHN(**SMALL)
    server, generator = ready_server(method)
    psi = {n: p.double() for n, p in server.weights("psi").items()}
    e = server.tensor("e").double()
    delta = torch.randn(3, len(psi["out.bias"]), generator=generator).double()
    g_trunk, g_e, a = method.gradients(psi, e, delta)
    step = 1e-6

    def value(psi, e, i):
        return float(delta[i] @ written(psi, e))

    for i in range(3):
        for k in range(3):
            up, down = e[i].clone(), e[i].clone()
            up[k], down[k] = up[k] + step, down[k] - step
            difference = (value(psi, up, i) - value(psi, down, i)) / (2 * step)
            assert float(g_e[i, k]) == pytest.approx(difference, rel=1e-5, abs=1e-6)
        for name, at in [("0.weight", (2, 1)), ("1.weight", (3, 4)), ("2.bias", (5,)), ("out.weight", (9, 2))]:
            up, down = ({n: p.clone() for n, p in psi.items()} for _ in range(2))
            up[name][at] += step
            down[name][at] -= step
            difference = (value(up, e[i], i) - value(down, e[i], i)) / (2 * step)
            mine = delta[i, 9] * a[i, 2] if name == "out.weight" else g_trunk[name][(i, *at)]
            assert float(mine) == pytest.approx(difference, rel=1e-5, abs=1e-6)


def test_it_starts_from_the_common_weights_so_its_first_local_models_are_fedavgs():
    data = tiny_data()
    method = PFedHN(client_lr=0.05)
    server = Server(tiny_task(len(data)))
    method.setup(server)
    for i in range(len(data)):
        client, down = visit(server.task, data, i), method.send(server, i)
        assert_equal(down.weights("w"), server.task.initial)
        up = method.local(client, down)
        expected = FedAvg().local(visit(server.task, data, i), down).weights("w")
        assert_close(weights_of(method.personal(client, down, up)), expected)


def test_after_a_while_clients_get_models_of_their_own():
    run = run_federation(PFedHN(), rounds=5)
    theta = [flatten(PFedHN().send(run.server, i).weights("w"), run.task.model) for i in range(4)]
    assert all(not torch.allclose(theta[0], other, atol=1e-6) for other in theta[1:])
    initial = flatten(run.task.initial, run.task.model)
    assert all(not torch.allclose(initial, each, atol=1e-4) for each in theta)


def test_clients_that_were_absent_keep_their_embedding():
    """Weight decay on all embeddings would shrink those of clients that are seldom chosen."""
    method = PFedHN(**SMALL)
    server, generator = ready_server(method)
    before = server.tensor("e").clone()
    method.merge(server, answers(server, [0, 2], generator))
    assert torch.equal(server.tensor("e")[1], before[1])
    assert not torch.equal(server.tensor("e")[0], before[0])


def test_only_one_model_travels_each_way_and_clients_keep_nothing():
    run = run_federation(PFedHN(), model=tiny_model("norm"))
    model = sum(t.numel() * t.element_size() for t in run.task.initial.values())
    assert run.reports[0].bytes_down == 4 * model
    assert run.reports[0].bytes_up == 4 * (model + 8)
    assert run.states == {}
    assert (run.server.weights("buffers")["body.1.running_mean"] != 0).any()
    assert run.server.weights("buffers")["body.1.num_batches_tracked"] > 0


def test_the_embedding_grows_with_the_federation():
    server = Server(tiny_task(20))
    PFedHN().setup(server)
    assert server.tensor("e").shape == (20, 6)
