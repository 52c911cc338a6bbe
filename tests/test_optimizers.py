"""Server optimizers against their equations, on every method that averages, through checkpoints and envelopes."""

import math
from functools import partial

import pytest
import torch

from fedpac.config import make_config
from fedpac.config_sections import ServerConfig
from fedpac.engines import SerialEngine
from fedpac.errors import ConfigError
from fedpac.federation import Federation
from fedpac.message import Message
from fedpac.methods import list_methods, make_method
from fedpac.methods.fedavg import FedAvg
from fedpac.methods.lg_fedavg import LGFedAvg
from fedpac.optimizers import Optimizer
from fedpac.runs.execute import fingerprint
from fedpac.testing.opaque import Sealed, opened, seal
from fedpac.testing.tiny import in_pieces
from helpers import Finished, assert_close, assert_equal, run_federation, tiny_data, tiny_model, tiny_task, visit

AVERAGING = sorted(name for name, cls in list_methods().items() if cls.averages)
OTHERS = sorted(name for name, cls in list_methods().items() if not cls.averages)


def start(method, rounds=3, model="plain", **optimizer) -> Federation:
    data = tiny_data()
    task = tiny_task(len(data), rounds, tiny_model(model), sample=data[0].train.tensors()[0][0])
    chosen = Optimizer(**optimizer) if optimizer else None
    return Federation(task, method, SerialEngine(task, method, data), optimizer=chosen)


def run(method, **how) -> Finished:
    federation = start(method, **how)
    return Finished(federation.task, federation, list(federation.rounds()))


def literal_step(kind, w, mean, memory, lr, b, c, tau):
    """One number after the other, as in Reddi et al., Algorithm 2."""
    out = []
    for at, (x, a) in enumerate(zip(w.flatten().tolist(), mean.flatten().tolist(), strict=True)):
        d = a - x
        m, s = memory.get(at, (0.0, tau**2))
        if kind == "momentum":
            m = b * m + d
            out.append(x + lr * m)
        else:
            m = b * m + (1 - b) * d
            if kind == "adam":
                s = c * s + (1 - c) * d * d
            else:
                s = s - (1 - c) * d * d * math.copysign(1, s - d * d) * (s != d * d)
            out.append(x + lr * m / (math.sqrt(s) + tau))
        memory[at] = (m, s)
    return torch.tensor(out).view_as(w)


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_three_steps_follow_the_equations(kind):
    stream = torch.Generator().manual_seed(0)
    optimizer = Optimizer(kind=kind, lr=0.3, momentum=0.6, second=0.7, tau=0.05)
    w, moments, memory = {"p": torch.randn(4, 3, generator=stream)}, {}, {}
    expected = w["p"]
    for _ in range(3):
        average = {"p": torch.randn(4, 3, generator=stream)}
        expected = literal_step(kind, expected, average["p"], memory, 0.3, 0.6, 0.7, 0.05)
        w, moments = optimizer.step(w, average, moments)
        torch.testing.assert_close(w["p"], expected, rtol=1e-5, atol=1e-6)


def test_momentum_warms_up_from_zero_and_then_stays():
    optimizer = Optimizer(kind="momentum", momentum=0.8, warmup=4)
    assert [optimizer.at(round).momentum for round in (1, 2, 3, 4, 5, 6)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 0.8])
    assert Optimizer(momentum=0.8).at(1).momentum == 0.8


def test_a_federation_warms_its_momentum_up():
    """Half the momentum in round 2 of a warm-up over two rounds, and so a step that is as much shorter."""
    slow, half, full = (run(FedAvg(), rounds=2, kind="momentum", momentum=m, warmup=w)
                        for m, w in ((0.8, 2), (0.4, 0), (0.8, 0)))  # fmt: skip
    assert_equal(slow.server.weights("w"), half.server.weights("w"))
    assert any((slow.server.weights("w")[name] != t).any() for name, t in full.server.weights("w").items())


def test_momentum_in_a_federation_is_the_heavy_ball():
    """Two rounds by hand: the second starts from the first average and goes on in its direction."""
    data = tiny_data()
    task, method = tiny_task(len(data)), FedAvg()
    w, v = task.initial, {name: torch.zeros_like(t) for name, t in task.initial.items()}
    for t in (1, 2):
        ups = [method.local(visit(task, data, i, t), Message(w=w)) for i in range(len(data))]
        n = sum(up.number("n") for up in ups)
        mean = {name: sum(up.number("n") / n * up.weights("w")[name] for up in ups) for name in w}
        v = {name: 0.5 * v[name] + mean[name] - w[name] for name in w}
        w = {name: w[name] + v[name] for name in w}
    assert_close(run(FedAvg(), rounds=2, kind="momentum").server.weights("w"), w)


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("model", ["plain", "norm"])
def test_every_method_that_averages_takes_it_and_keeps_running_statistics_measured(name, model):
    plain, pushed = run(make_method(name), model=model), run(make_method(name), model=model, momentum=0.7)
    moved = [part for part in pushed.server.state if part.endswith(" velocity")]
    assert moved
    for part in moved:
        weights = pushed.server.weights(part.removesuffix(" velocity"))
        assert "body.1.running_var" not in pushed.server.weights(part)
        if "body.1.running_var" in weights:
            assert (weights["body.1.running_var"] > 0).all()
            assert weights["body.1.num_batches_tracked"].dtype == torch.int64
    assert pushed.bytes()["server"] != plain.bytes()["server"]
    for state in pushed.reports[-1].scores:
        assert math.isfinite(state.loss)


@pytest.mark.parametrize("name", AVERAGING)
def test_without_one_nothing_is_kept(name):
    method = make_method(name)
    if method.optimizer() is None:
        assert not [part for part in run(method, rounds=1).server.state if part.endswith(" velocity")]


@pytest.mark.parametrize("name", OTHERS)
def test_methods_that_do_not_average_refuse_it_by_name(name):
    with pytest.raises(ConfigError, match=f"method {name} does not average models"):
        make_config({"method": name, "server": {"optimizer": "adam"}})
    with pytest.raises(ConfigError, match=f"method {name} does not average models"):
        start(make_method(name), kind="momentum")


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_its_moments_are_in_the_checkpoint(kind):
    whole = run(FedAvg(), kind=kind)
    pieces = in_pieces(partial(start, FedAvg(), kind=kind))
    assert pieces.bytes() == whole.bytes()
    assert pieces.scores() == whole.scores()


def test_a_warm_start_carries_the_moments_of_what_stays_shared():
    done = run(LGFedAvg(warm_start_rounds=1), kind="momentum")
    assert set(done.server.weights("w velocity")) == set(done.server.weights("w")) == {"head.weight", "head.bias"}


def test_momentum_works_on_weights_that_the_server_cannot_read():
    plain, federation = run(FedAvg(), kind="momentum"), start(FedAvg(), kind="momentum")
    server, method = federation.server, federation.method
    for round in (1, 2, 3):
        server.round = round
        data = tiny_data()
        downs = {i: Message(**opened(method.send(server, i))) for i in range(len(data))}
        replies = {i: method.local(visit(federation.task, data, i, round), down) for i, down in downs.items()}
        method.merge(server, {i: seal(up, ["w"]) for i, up in replies.items()})
        assert isinstance(server.state["w"], Sealed)
        assert isinstance(server.state["w velocity"], Sealed)
    assert_close(opened(server.state)["w"], plain.server.weights("w"))


@pytest.mark.parametrize(("kind", "model", "message"), [("adam", "plain", "squares"), ("momentum", "norm", "running")])
def test_what_cannot_be_done_with_such_weights_is_refused(kind, model, message):
    federation = start(FedAvg(), model=model, kind=kind)
    up = FedAvg().local(visit(federation.task, tiny_data(), 0), FedAvg().send(federation.server, 0))
    with pytest.raises(ConfigError, match=message):
        FedAvg().merge(federation.server, {0: seal(up, ["w"])})


def test_the_config_states_what_is_usual_for_the_optimizer():
    config = make_config({"method": "fedavg", "server": {"optimizer": "yogi", "lr": 0.1}})
    assert (config.server.lr, config.server.momentum) == (0.1, 0.9)
    assert config.server.make_optimizer() == Optimizer(kind="yogi", lr=0.1, momentum=0.9)
    assert ServerConfig(optimizer="momentum").make_optimizer() == Optimizer(kind="momentum", lr=1.0, momentum=0.5)
    with pytest.raises(ConfigError, match=r"server\.momentum needs"):
        make_config({"server": {"momentum": 0.9}})
    with pytest.raises(ConfigError, match=r"server\.warmup needs"):
        make_config({"server": {"warmup": 5}})


def test_runs_from_before_there_were_optimizers_go_on():
    config = make_config({"method": "fedavg"})
    assert "server" not in config.identity()
    pushed = make_config({"method": "fedavg", "server": {"optimizer": "momentum"}})
    assert fingerprint(config) != fingerprint(pushed)
    assert "warmup" not in pushed.identity()["server"]  # which came later still
    warmed = make_config({"method": "fedavg", "server": {"optimizer": "momentum", "warmup": 5}})
    assert fingerprint(warmed) != fingerprint(pushed)


def test_an_optimizer_that_is_asked_for_changes_only_what_it_steers():
    plain, pushed = run_federation(FedAvg(), rounds=1), run(FedAvg(), rounds=1, kind="momentum", lr=1.0)
    assert_close(pushed.server.weights("w"), plain.server.weights("w"))  # the first step is the average itself
    assert_equal(pushed.task.initial, plain.task.initial)
