"""FedPAC+ against FedPAC: each of its changes alone, and none of them."""

import pytest
import torch

from fedpac.config import make_config
from fedpac.engines import SerialEngine
from fedpac.errors import ConfigError
from fedpac.federation import Federation
from fedpac.methods.fedpac import FedPAC
from fedpac.methods.fedpac_plus import FedPACPlus
from fedpac.optimizers import Optimizer
from helpers import Finished, assert_close, assert_equal, run_federation, tiny_data, tiny_images, tiny_task, visit

OFF = {"momentum": 0.0, "rate": 1.0, "falls_from": 0, "control": False, "growth": 1.0, "augmented": False}


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_its_changes_it_is_fedpac(participation):
    plus = run_federation(FedPACPlus(**OFF), rounds=3, participation=participation)
    plain = run_federation(FedPAC(), rounds=3, participation=participation)
    assert plus.bytes() == plain.bytes()
    assert plus.scores() == plain.scores()


def test_momentum_carries_the_body_on_and_nothing_else():
    """The second body is the average of what clients made of the first, and half of the first step once more."""
    data, method = tiny_data(), FedPACPlus(**{**OFF, "momentum": 0.5, "warmup": 0})
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


def test_its_momentum_can_warm_up():
    """In the second of two rounds of warm-up there is half of it."""
    warmed = run_federation(FedPACPlus(momentum=0.8, warmup=2), rounds=2)
    half = run_federation(FedPACPlus(momentum=0.4, warmup=0), rounds=2)
    assert_equal(warmed.server.weights("w"), half.server.weights("w"))


def test_the_rate_is_of_the_body_alone():
    data = tiny_data()
    task, fast = tiny_task(len(data)), tiny_task(len(data), lr=0.1)
    down = FedPAC().send(run_federation(FedPAC(), data=data).server, 1)
    ours = FedPACPlus(**{**OFF, "rate": 2.0}).local(visit(task, data, 1, 3), down)
    twice = FedPAC().local(visit(fast, data, 1, 3), down)  # the head has a rate of its own
    assert_equal(ours.weights("w"), twice.weights("w"))
    assert_equal(ours.weights("head"), twice.weights("head"))


def returning(task, data, i, turn):
    """A visit of a client on its given turn, in a run that has had twice as many rounds."""
    client = visit(task, data, i, 2 * turn)
    client.state["turns"] = turn - 1.0
    return client


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_clients_count_the_rounds_that_they_take_part_in(participation):
    done = run_federation(FedPACPlus(), rounds=4, participation=participation)
    turns = [state.get("turns", 0.0) for state in done.federation.engine.snapshot().values()]
    took_part = [sum(i in report.chosen for report in done.reports) for i in range(len(turns))]
    assert turns == took_part
    assert (min(turns) == 4) == (participation == 1)
    still = run_federation(FedPACPlus(falls_from=0, growth=1.0), rounds=1)
    assert not any("turns" in state for state in still.federation.engine.snapshot().values())


def test_the_rate_falls_as_one_over_the_clients_round():
    data = tiny_data()
    task = tiny_task(len(data))
    lr = task.recipe.lr
    falling, steady = FedPACPlus(rate=3.0, falls_from=50), FedPACPlus(rate=3.0, falls_from=0)
    for t, part in ((1, 1.0), (50, 1.0), (60, 50 / 60), (100, 0.5), (1000, 0.05)):
        client = returning(task, data, 0, t)
        assert falling.body_lr(client) == pytest.approx(3 * lr * part)
        assert steady.body_lr(client) == 3 * lr
    down = FedPAC().send(run_federation(FedPAC(), data=data).server, 1)
    method = FedPACPlus(**{**OFF, "rate": 2.0, "falls_from": 50})
    ours, theirs = (m.local(returning(task, data, 1, 100), down) for m in (method, FedPAC()))
    assert_equal(ours.weights("w"), theirs.weights("w"))


def test_the_alignment_grows_linearly_over_the_rounds():
    """From lam in the first round to `growth` times as much, where it stays; a visit then is FedPAC's with that lam."""
    data = tiny_data()
    task = tiny_task(len(data))
    method = FedPACPlus(**{**OFF, "growth": 5.0, "growth_rounds": 8}, lam=0.5)
    strengths = [method.alignment_strength(returning(task, data, 0, t)) for t in (1, 2, 5, 9, 10, 1000)]
    assert strengths == pytest.approx([0.5, 0.75, 1.5, 2.5, 2.5, 2.5])
    down = FedPAC().send(run_federation(FedPAC(), data=data).server, 1)
    ours, theirs = (m.local(returning(task, data, 1, 5), down) for m in (method, FedPAC(lam=1.5)))
    assert_equal(ours.weights("w"), theirs.weights("w"))
    assert FedPACPlus(lam=0.0).alignment_strength(returning(task, data, 0, 50)) == 0


def test_few_steps_weaken_control_variates_in_proportion():
    """Clients with 12 samples take 6 steps of 4 in two epochs, or as many as `body_epochs` says."""
    data = tiny_data(sizes=[12, 12])
    client = visit(tiny_task(len(data)), data, 0, 1)
    for settings, strength in (
        ({}, 6 / 20), ({"full_control": 12}, 1 / 2), ({"full_control": 6}, 1.0), ({"full_control": 1}, 1.0),
        ({"full_control": 12, "body_epochs": 3}, 3 / 4), ({"full_control": 12, "body_epochs": 0}, 0.0),
    ):  # fmt: skip
        assert FedPACPlus(**settings).strength(client) == pytest.approx(strength)


def flat(weights):
    return torch.cat([tensor.reshape(-1) for tensor in weights.values()])


def body_of(message):
    return flat({name: tensor for name, tensor in message.weights("w").items() if name.startswith("body.")})


@pytest.mark.parametrize("full_control", [1, 5, 20])
def test_control_variates_are_scaffolds_option_two(full_control):
    """With plain SGD, h_i' = s (h_i - h) + (theta - theta_i) / (K lr), and every step follows g + s (h - h_i)."""
    data, method = tiny_data(), FedPACPlus(**{**OFF, "control": True, "full_control": full_control})
    one = run_federation(method, data=data, rounds=1, momentum=0.0, weight_decay=0.0)
    for i in range(len(data)):
        client, down = visit(one.task, data, i, 2), method.send(one.server, i)
        h, own = flat(down.weights("control")), one.states[i]["control"]
        client.state["control"] = own
        up = method.local(client, down)
        steps = one.task.recipe.epochs * -(-len(data[i].train) // one.task.recipe.batch)
        correction = min(1, steps / full_control) * (h - own)
        option_two = (body_of(down) - body_of(up)) / (steps * one.task.recipe.lr) - correction
        torch.testing.assert_close(client.state["control"], option_two, rtol=1e-3, atol=1e-5)
        assert torch.equal(flat(up.weights("control")), client.state["control"])
        moved = FedPAC().local(visit(one.task, data, i, 2), down, lambda w, g, by=correction: g.add_(by))
        assert_equal(up.weights("w"), moved.weights("w"))
        assert_equal(up.weights("head"), moved.weights("head"))


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_h_is_the_mean_of_all_h_i_by_their_samples(rounds):
    data = tiny_data()
    done = run_federation(FedPACPlus(**{**OFF, "control": True}), data=data, rounds=rounds)
    n = torch.tensor([len(client.train) for client in data], dtype=torch.float64)
    mean = sum(n[i] / n.sum() * done.states[i]["control"].double() for i in range(len(data)))
    torch.testing.assert_close(flat(done.server.weights("control")).double(), mean, rtol=1e-4, atol=1e-6)


def test_the_first_round_of_control_variates_is_fedpacs_and_the_second_is_not():
    for rounds in (1, 2):
        one, other = (
            run_federation(m, rounds=rounds).server.weights("w")
            for m in (FedPACPlus(**{**OFF, "control": True}), FedPAC())
        )
        if rounds == 1:
            assert_equal(one, other)
        else:
            assert not torch.allclose(one["body.0.weight"], other["body.0.weight"], atol=1e-4)


def test_half_of_the_clients_move_h_half_the_way():
    data, method = tiny_data(), FedPACPlus(**{**OFF, "control": True})
    done = run_federation(method, data=data, rounds=1, participation=0.5)
    (report,) = done.reports
    total = sum(len(data[i].train) for i in report.chosen)
    mean = sum(len(data[i].train) / total * done.states[i]["control"] for i in report.chosen)
    torch.testing.assert_close(
        flat(done.server.weights("control")), len(report.chosen) / len(data) * mean, rtol=1e-4, atol=1e-6
    )


def test_a_lie_about_h_is_forgotten_when_everybody_has_answered():
    """Replies hold h_i itself and not its change, which would add up for ever."""
    data, method = tiny_data(), FedPACPlus(**{**OFF, "control": True})
    server = run_federation(method, data=data, rounds=1).server
    server.state["control"] = {name: tensor + 0.1 for name, tensor in server.weights("control").items()}
    task = tiny_task(len(data))
    ups = {i: method.local(visit(task, data, i, 2), method.send(server, i)) for i in range(len(data))}
    method.merge(server, ups)
    n = sum(up.number("n") for up in ups.values())
    mean = sum(up.number("n") / n * flat(up.weights("control")) for up in ups.values())
    torch.testing.assert_close(flat(server.weights("control")), mean, rtol=1e-5, atol=1e-7)


def test_a_run_from_before_control_variates_is_one_without_them():
    with_key, without = (make_config({"method": {"name": "fedpac-plus", "control": c}}) for c in (True, False))
    assert "control" not in without.identity()["method"]
    assert with_key.identity()["method"]["control"] is True


def test_a_run_from_before_anything_changed_over_the_rounds_is_one_of_the_steady_version():
    steady = {"name": "fedpac-plus", "growth": 1, "warmup": 0, "falls_from": 0}
    old, now = (make_config({"method": method}).identity()["method"] for method in (steady, "fedpac-plus"))
    assert not old.keys() & {"growth", "growth_rounds", "warmup", "falls_from", "full_control"}
    assert (now["growth"], now["warmup"], now["falls_from"]) == (5.0, 10, 50)


def test_differential_privacy_asks_for_no_control_variates():
    with pytest.raises(ConfigError, match=r"control = false"):
        FedPACPlus(summed_centroids=True).protects()
    assert FedPACPlus(summed_centroids=True, control=False).protects() == FedPAC(summed_centroids=True).protects()


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
