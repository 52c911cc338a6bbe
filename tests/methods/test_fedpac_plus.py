"""FedPAC+ against FedPAC: each of its three changes alone, and none of them."""

import pytest
import torch

from fedpac.config import make_config
from fedpac.engines import SerialEngine
from fedpac.federation import Federation
from fedpac.methods.fedpac import FedPAC
from fedpac.methods.fedpac_plus import FedPACPlus
from fedpac.optimizers import Optimizer
from helpers import Finished, assert_close, assert_equal, run_federation, tiny_data, tiny_images, tiny_task, visit

OFF = {"momentum": 0.0, "rate": 1.0, "augmented": False}


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_its_changes_it_is_fedpac(participation):
    plus = run_federation(FedPACPlus(**OFF), rounds=3, participation=participation)
    plain = run_federation(FedPAC(), rounds=3, participation=participation)
    assert plus.bytes() == plain.bytes()
    assert plus.scores() == plain.scores()


def test_momentum_carries_the_body_on_and_nothing_else():
    """The second body is the average of what clients made of the first, and half of the first step once more."""
    data, method = tiny_data(), FedPACPlus(**{**OFF, "momentum": 0.5})
    one, two = (run_federation(method, data=data, rounds=rounds) for rounds in (1, 2))
    plain = run_federation(FedPAC(), data=data, rounds=1)
    for name, tensor in plain.server.weights("w").items():
        torch.testing.assert_close(one.server.weights("w")[name], tensor, rtol=1e-5, atol=1e-6)
    ups = [method.local(visit(two.task, data, i, 2), method.send(one.server, i)) for i in range(len(data))]
    n = sum(up.number("n") for up in ups)
    first, start = one.server.weights("w"), one.task.initial
    expected = {
        name: sum(up.number("n") / n * up.weights("w")[name] for up in ups) + 0.5 * (first[name] - start[name])
        for name in first
    }
    assert_close(two.server.weights("w"), expected)
    assert {part for part in two.server.state if part.endswith("velocity")} == {"w velocity"}


def test_the_rate_is_of_the_body_alone():
    data = tiny_data()
    task, fast = tiny_task(len(data)), tiny_task(len(data), lr=0.1)
    down = FedPAC().send(run_federation(FedPAC(), data=data).server, 1)
    ours = FedPACPlus(**{**OFF, "rate": 2.0}).local(visit(task, data, 1, 3), down)
    twice = FedPAC().local(visit(fast, data, 1, 3), down)  # the head has a rate of its own
    assert_equal(ours.weights("w"), twice.weights("w"))
    assert_equal(ours.weights("head"), twice.weights("head"))


def test_statistics_are_of_augmented_images_where_there_are_any():
    data, model = tiny_images()
    task = tiny_task(1, model=model)
    down = FedPAC().send(run_federation(FedPAC(), data=data, model=model, rounds=1).server, 0)
    plus, plain = (m.local(visit(task, data, 0, 2), down) for m in (FedPACPlus(), FedPAC(augmented=True)))
    assert torch.equal(plus.weights("statistics")["means"], plain.weights("statistics")["means"])


def test_an_optimizer_that_is_asked_for_takes_the_place_of_its_momentum():
    data, method, asked = tiny_data(), FedPACPlus(), Optimizer(kind="adam", lr=0.01)
    task = tiny_task(len(data), 2, sample=data[0].train.tensors()[0][0])
    federation = Federation(task, method, SerialEngine(task, method, data), optimizer=asked)
    done = Finished(task, federation, list(federation.rounds()))
    assert "w second" in done.server.state
    assert "w velocity" not in done.server.state
    assert make_config({"method": "fedpac-plus", "server": {"optimizer": "adam"}}).server.lr == 0.01
