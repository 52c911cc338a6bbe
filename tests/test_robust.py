"""Robust averages: what honest clients agree on survives, whatever a few others send."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpac.collaboration.centroids import Centroids, global_centroids
from fedpac.collaboration.weights import bounded
from fedpac.config import make_config
from fedpac.data.scenario import build
from fedpac.errors import ConfigError
from fedpac.hostile import SQUARE, TARGET, HostileConfig
from fedpac.message import Message
from fedpac.methods import make_method
from fedpac.mods.base import Context, into_client
from fedpac.robust import Rule, aggregating, closest, distances
from fedpac.runs.execute import run
from fedpac.testing.tiny import start_federation
from fedpac.weights import average, combined
from helpers import run_federation
from small_run import small, tiny

KINDS = ("median", "trimmed-mean", "krum", "clipped")


def replies(honest, hostile=()):
    return [{"a": torch.tensor(v), "steps": torch.tensor(3)} for v in [*honest, *hostile]]


def numbers(clients):
    return dict(enumerate(clients)), dict.fromkeys(range(len(clients)), 1.0)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10**6), strength=st.sampled_from([-1e6, -30.0, 1e3, 1e12]))
@settings(max_examples=25, deadline=None)
def test_two_of_ten_cannot_carry_the_average_out_of_where_the_honest_are(kind, seed, strength):
    random = np.random.default_rng(seed)
    honest = random.normal(1.0, 0.1, (8, 5))
    hostile = strength * random.normal(1.0, 0.1, (2, 5))
    with aggregating(Rule(kind=kind)):
        found = average(*numbers(replies(honest, hostile)))["a"].numpy()
    spread = np.linalg.norm(honest - honest.mean(0), axis=1).max()
    assert np.linalg.norm(found - honest.mean(0)) <= 2 * spread
    plain = average(*numbers(replies(honest, hostile)))["a"].numpy()
    assert np.linalg.norm(plain - honest.mean(0)) > 2 * spread  # the mean is carried away: the attack is real


def test_the_rules_are_what_their_papers_say():
    rows = np.random.default_rng(0).normal(size=(7, 4))
    shares = dict(enumerate([1.0, 2, 3, 4, 5, 6, 7]))
    given_ = dict(enumerate(replies(rows)))

    def by(kind, hostile=0.2):
        with aggregating(Rule(kind=kind, hostile=hostile)):
            return average(given_, shares)["a"].numpy()

    np.testing.assert_allclose(by("median"), np.median(rows, axis=0))
    ordered = np.sort(rows, axis=0)
    np.testing.assert_allclose(by("trimmed-mean"), ordered[2:5].mean(0))  # f = ceil(1.4)
    squares = np.square(rows[:, None] - rows[None]).sum(2)
    scores = np.sort(squares, axis=1)[:, 1 : 7 - 2 - 2 + 1].sum(1)
    best = np.argsort(scores)[:5]
    weights = np.array([shares[i] for i in best])
    np.testing.assert_allclose(by("krum"), weights @ rows[best] / weights.sum())
    assert closest(distances(list(given_.values())), 2) == sorted(best)
    centre = np.median(rows, axis=0)
    lengths = np.linalg.norm(rows - centre, axis=1)
    cut = np.minimum(1, np.median(lengths) / lengths) * np.arange(1, 8) / 28
    np.testing.assert_allclose(by("clipped"), centre + cut @ (rows - centre))
    even = dict(enumerate(replies(rows[:4])))
    with aggregating(Rule(kind="median")):
        np.testing.assert_allclose(average(even, shares)["a"].numpy(), np.median(rows[:4], axis=0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_liar_cannot_move_centroids_nor_win_by_claiming_many_samples(kind):
    random = np.random.default_rng(0)
    honest = [Centroids(torch.tensor([5, 5, 0]), torch.from_numpy(random.normal(1.0, 0.1, (3, 4)))) for _ in range(8)]
    liar = Centroids(torch.tensor([9_000_000, 5, 5]), torch.full((3, 4), -30.0, dtype=torch.float64))
    clean = global_centroids(honest).means
    with aggregating(Rule(kind=kind)):
        found = global_centroids([*honest, liar])
    assert float((found.means[:2] - clean[:2]).norm(dim=1).max()) < 0.2
    assert found.counts.tolist() == [9_000_040, 45, 5]
    assert float((global_centroids([*honest, liar]).means[0] - clean[0]).norm()) > 50  # the attack is real
    with aggregating(Rule(kind=kind)):
        few = global_centroids([*honest[:1], liar]).means
    torch.testing.assert_close(few[0], honest[0].means[0])  # of two, the shorter


def test_outside_the_server_nothing_changes_and_two_replies_are_too_few():
    pair = numbers(replies([[1.0], [3.0]]))
    assert float(average(*pair)["a"]) == 2
    with aggregating(Rule(kind="median")), pytest.raises(ConfigError, match="at least three replies"):
        average(*pair)
    assert float(average(*pair)["a"]) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fedavg", "fedpac", "scaffold", "fedem", "fedrep"])
def test_every_rule_runs_under_methods_that_average(name, kind, tmp_path):
    tiny(tmp_path / "run", method=name, server__aggregation=kind)


def test_methods_without_an_average_refuse():
    with pytest.raises(ConfigError, match="method local does not average models"):
        make_config({"method": "local", "server": {"aggregation": "median"}})


# --- FedPAC -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.3, 0.9]))
@settings(max_examples=30, deadline=None)
def test_nobody_has_more_than_the_bound_in_anothers_head(seed, most):
    alpha = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.full(6, 0.2), 6))
    cut = bounded(alpha, most)
    torch.testing.assert_close(cut.sum(1), torch.ones(6, dtype=torch.float64))
    others = cut - torch.diag(cut.diagonal())
    assert float(others.max()) <= most + 1e-12
    assert bool((cut >= 0).all())
    assert bool((cut.diagonal() >= alpha.diagonal() - 1e-12).all())


def test_a_client_that_copies_anothers_statistics_wins_at_most_the_bound():
    """A liar that sends what client 0 would: without a bound it has half of its head, with one no more than that."""

    class Liar(type(make_method("fedpac"))):
        name = "liar"

        def weights(self, replies):
            copied = {i: Message(**{**up, "statistics": replies[0].weights("statistics")}) for i, up in replies.items()}
            return super().weights(copied)

    def most_of_others(**settings):
        rows = run_federation(Liar(**settings), rounds=1).reports[0].peer_weights
        return max(weight for i, j, weight in rows if i != j)

    assert most_of_others() > 0.2
    assert most_of_others(most_weight=0.1) <= 0.1 + 1e-9


def test_with_a_robust_rule_a_head_moves_by_its_share_of_what_is_usual():
    heads = {
        0: {"a": torch.zeros(3)},
        1: {"a": torch.ones(3)},
        2: {"a": -torch.ones(3)},
        3: {"a": torch.full((3,), 1e6)},
    }
    coefficients = {0: 0.6, 1: 0.2, 3: 0.2}
    with aggregating(Rule(kind="clipped")):
        found = combined(0, heads, coefficients)["a"]
    torch.testing.assert_close(found, torch.full((3,), 0.4))  # 0.2 of head 1, and 0.2 of head 3 cut to the same length


def test_under_a_robust_rule_nobody_gets_a_head_from_a_client_whose_body_lies_far_off():
    class Shouting(type(make_method("fedpac"))):
        name = "shouting"

        def local(self, client, down):
            up = super().local(client, down)
            far = {name: 50 * tensor for name, tensor in up.weights("w").items()}
            return Message(**{**up, "w": far}) if client.id == 1 else up

    def given_by_it(rule):
        federation = start_federation(Shouting(), rounds=1)
        federation.aggregation = rule
        rows, kept = federation.step().peer_weights, federation.server.state
        assert sum(weight for i, _, weight in rows if i == 0) == pytest.approx(1)
        return sum(weight for i, j, weight in rows if j == 1 and i != 1), "phi.1" in kept

    assert given_by_it(None)[0] > 0
    assert given_by_it(None)[1]
    for kind in ("median", "trimmed-mean", "krum", "clipped"):
        assert given_by_it(Rule(kind=kind)) == (0, False)  # nor do newcomers


# --- hostile clients ----------------------------------------------------------------------------------------------


def test_liars_multiply_what_they_learned_and_nobody_else_does():
    config = HostileConfig(attack="sign-flip", share=0.5, strength=3.0)
    who = config.who(4, seed=0)
    (mod,) = config.mods(4, 0)
    down = Message(w={"a": torch.ones(2), "steps": torch.tensor(1)}, head={"b": torch.zeros(1)})
    for client in range(4):
        up = Message(w={"a": torch.full((2,), 2.0), "steps": torch.tensor(2)}, head={"b": torch.ones(1)}, n=5)
        sent = into_client([mod], down, Context(client, 1)).back(up)
        expected = -2.0 if client in who else 2.0
        assert sent.weights("w")["a"].tolist() == [expected] * 2
        assert float(sent.weights("head")["b"]) == (-3.0 if client in who else 1.0)
        assert int(sent.weights("w")["steps"]) == 2
    assert len(who) == 2


def test_poisoned_data_are_the_hostile_clients_training_data_only():
    scenario = build(small().data, 0)
    clean = scenario.clients
    for attack in ("label-flip", "backdoor"):
        config = HostileConfig(attack=attack, share=0.5)
        bad = config.poisoned(clean, scenario.classes, 0)
        for i in range(4):
            (x, y), (was, labels) = bad[i].train.tensors(), clean[i].train.tensors()
            assert bad[i].test is clean[i].test
            if i not in config.who(4, 0):
                assert bad[i] is clean[i]
            elif attack == "label-flip":
                assert torch.equal(y, scenario.classes - 1 - labels)
                assert torch.equal(x, was)
            else:
                half = len(y) // 2
                assert (y[:half] == TARGET).all()
                assert torch.equal(y[half:], labels[half:])
                assert torch.equal(x[half:], was[half:])
                white = x[:half, :, -SQUARE - 1 : -1, -SQUARE - 1 : -1]
                assert (white == white.max()).all()
                assert torch.equal(x[:half, :, : -SQUARE - 1], was[:half, :, : -SQUARE - 1])


def test_attacks_of_a_config_reach_the_run(tmp_path):
    for attack in ("none", "sign-flip", "scaled", "label-flip", "backdoor"):
        config = make_config(
            {
                "method": "fedavg", "model": "logistic", "training": {"epochs": 1, "lr": 0.1},
                "data": {"dataset": "digits", "clients": 4, "samples": 10, "test_samples": 10},
                "run": {"rounds": 2, "engine": "serial"}, "hostile": {"attack": attack, "share": 0.25},
            }
        )  # fmt: skip
        run(config, tmp_path / attack)
    metrics = {folder.name: (folder / "metrics.csv").read_text() for folder in tmp_path.iterdir()}
    assert len(set(metrics.values())) == 5


def test_liars_keep_their_own_head_and_take_what_everybody_shares():
    (mod,) = HostileConfig(attack="sign-flip", share=0.5, strength=3.0).mods(2, seed=0)
    (liar,) = HostileConfig(attack="sign-flip", share=0.5).who(2, seed=0)
    context, names = Context(liar, 1), ("w", "control", "head")
    first = into_client([mod], Message(**{name: {"a": torch.zeros(2)} for name in names}), context)
    first.back(Message(**{name: {"a": torch.ones(2)} for name in names}))
    second = into_client([mod], Message(**{name: {"a": torch.full((2,), 5.0)} for name in names}), context).message
    used = {name: float(second.weights(name)["a"][0]) for name in names}
    assert used == {"w": 5.0, "control": 5.0, "head": 1.0}
