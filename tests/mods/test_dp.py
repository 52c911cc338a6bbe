"""Differential privacy: nobody changes more than allowed, noise is as large as it says, epsilon is what was spent."""

import json
import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from scipy.stats import kstest

from fedpac.collaboration.statistics import FeatureStatistics
from fedpac.config import make_config
from fedpac.engines import make_engine
from fedpac.errors import ConfigError, MessageError
from fedpac.federation import Federation
from fedpac.message import Message
from fedpac.methods import list_methods, make_method
from fedpac.mods.base import Context, into_client, out_of_server
from fedpac.mods.ckks_keys import Parameters
from fedpac.mods.dp import (
    CLIP,
    SPENT,
    VOTE,
    Dp,
    cut_statistics,
    drawn_from,
    epsilon_of,
    noise_for,
    noisy_statistics,
    secret_normal,
    whole_shares,
)
from fedpac.privacy import PrivacyConfig, most_often
from fedpac.recipe import Recipe
from fedpac.runs.execute import advance, resume, run
from fedpac.task import Task
from helpers import CLASSES, INPUTS, RECIPE, Finished, tiny_data, tiny_model
from small_run import small

SUMMED = {"summed_centroids": True}
HOME = {**SUMMED, "collaboration": False}


def mod(kinds=None, **changes):
    usual = {"noise": 1.0, "clip": 1.0, "features": 1.0, "delta": 1e-3, "cohort": 4, "clients": 4, "seed": 0}
    return Dp(**{"kinds": kinds or {"w": "average", "n": "public"}, **usual, **changes})


def there_and_back(one, before, after, client=0, round=1, memory=None):
    memory = {} if memory is None else memory
    server = out_of_server([one], before, Context(client, round, memory))
    site = into_client([one], server.message, Context(client, round))
    return server.back(site.back(after))


def federation(name, rounds=3, privacy=None, settings=None, key=None, engine="serial"):
    data = tiny_data()
    method = make_method(name, settings)
    run_config = make_config({"run": {"rounds": rounds, "seed": 3}}).run
    mods = PrivacyConfig(**(privacy or {})).mods(method, len(data), key, run_config)
    task = Task(tiny_model(), CLASSES, Recipe(**RECIPE), 3, len(data), rounds, sample=torch.zeros(INPUTS), mods=mods)
    return Federation(task, method, make_engine(engine, task, method, data, 2))


def finish(made):
    with made.engine:
        return Finished(made.task, made, list(made.rounds()))


# --- what leaves a client -----------------------------------------------------------------------------------------


def test_a_change_is_cut_and_nothing_else_is_changed():
    before = Message(w={"a": torch.ones(4), "b": torch.zeros(2), "steps": torch.tensor(7)})
    after = Message(w={"a": torch.ones(4) + 3, "b": torch.full((2,), 4.0), "steps": torch.tensor(99)}, n=5)
    sent = there_and_back(mod(noise=0.0), before, after)
    change = torch.cat([sent.weights("w")["a"] - 1, sent.weights("w")["b"]])
    assert float(change.norm()) == pytest.approx(1.0, abs=1e-6)
    direction = torch.tensor([3.0, 3, 3, 3, 4, 4])
    torch.testing.assert_close(change, direction / direction.norm())
    assert int(sent.weights("w")["steps"]) == 7  # a counter would tell how many batches there were
    assert sent.number("n") == 5
    short = there_and_back(mod(noise=0.0, clip=100.0), before, after)
    torch.testing.assert_close(short.weights("w")["b"], after.weights("w")["b"])


@pytest.mark.parametrize(("adder", "kind", "expected"), [
    ("server", "average", 0.5), ("clients together", "average", 0.5), ("each client", "average", 1.0),
    ("server", "each", 1.0), ("clients together", "each", 1.0),
])  # fmt: skip
def test_noise_is_as_large_as_it_says_and_no_two_are_alike(adder, kind, expected):
    one = mod({"w": kind}, adder=adder, noise=2.0, clip=0.5, cohort=4)  # z C = 1
    before = Message(w={"a": torch.zeros(20_000, dtype=torch.float64)})
    seen = [
        there_and_back(one, before, before, client, round).weights("w")["a"]
        for client, round in [(0, 1), (1, 1), (0, 2)]
    ]
    for noise in seen:
        assert float(noise.std()) == pytest.approx(expected, rel=0.02)
        assert abs(float(noise.mean())) < 0.05
    assert abs(float(torch.corrcoef(torch.stack(seen)).triu(1).abs().max())) < 0.03
    again = there_and_back(one, before, before).weights("w")["a"]
    assert torch.equal(again, seen[0])  # a simulation can be repeated
    secret = mod({"w": kind}, adder=adder, seed=None)
    first, second = (there_and_back(secret, before, before).weights("w")["a"] for _ in range(2))
    assert not torch.equal(first, second)  # a real site's noise cannot


def test_what_is_not_covered_never_leaves():
    before = Message(w={"a": torch.zeros(1)})
    with pytest.raises(MessageError, match="'extra', which differential privacy does not cover"):
        there_and_back(mod(), before, Message(**before, extra=1.0))
    with pytest.raises(MessageError, match="should be empty"):
        there_and_back(mod({"w": "empty"}), before, before)


def test_statistics_are_cut_and_their_noise_leaves_statistics():
    random = np.random.default_rng(0)
    counts = torch.tensor([10, 0, 30])
    means = torch.from_numpy(random.normal(0, 50, (3, 4))) * (counts > 0).unsqueeze(1)
    given = {"counts": counts, "means": means, "scatter": torch.tensor(1e6, dtype=torch.float64)}
    cut = FeatureStatistics.from_tensors(cut_statistics(given, 10.0))
    assert float(cut.h.norm()) <= 10 + 1e-9
    assert cut.V <= 100 + 1e-9
    draw = drawn_from(torch.Generator().manual_seed(0))
    drawn = [FeatureStatistics.from_tensors(noisy_statistics(cut.to_tensors(), 0.1, 10.0, draw)) for _ in range(300)]
    assert all(s.n == 40 and s.counts.dtype == torch.int64 and float(s.scatter) >= 0 for s in drawn)
    present = torch.stack([s.h for s in drawn if (s.counts > 0).all()])
    deviation = float((present - cut.h).std())
    assert deviation == pytest.approx(0.1 * math.sqrt(3) * 10, rel=0.1)


def test_averaged_centroids_are_cut_and_what_drowns_in_noise_is_absent():
    one = mod({"centroids": "centroids"}, features=2.0, noise=0.5, cohort=4)
    sums, shares = torch.full((2, 50), 30.0, dtype=torch.float64), torch.tensor([0.9, 0.1], dtype=torch.float64)
    exact = there_and_back(replace(one, noise=0.0), Message(), Message(centroids={"sums": sums, "shares": shares}))
    assert float(exact.weights("centroids")["sums"].norm()) == pytest.approx(2.0)
    torch.testing.assert_close(exact.weights("centroids")["shares"], shares)
    noise = [
        there_and_back(one, Message(), exact, client).weights("centroids")["sums"] - exact.weights("centroids")["sums"]
        for client in range(100)
    ]
    assert float(torch.stack(noise).std()) == pytest.approx(math.sqrt(2) * 0.5 * 2.0 / math.sqrt(4), rel=0.05)
    # the average's shares have a deviation of sqrt(2) z / m = 0.18, and a tenth may be made of it
    heard = into_client([one], exact, Context(0, 2)).message.weights("centroids")["shares"]
    assert heard.tolist() == [pytest.approx(0.9), 0.0]


@pytest.mark.parametrize(("adder", "noise", "spent"), [
    ("server", 0.0, 0.0), ("clients together", 0.0, 0.0), ("each client", 1.0, 1.0)
])  # fmt: skip
def test_what_only_its_client_gets_back_is_hidden_from_an_untrusted_server_only(adder, noise, spent):
    one, memory = mod({"head": "kept", "n": "public"}, adder=adder), {}
    head = {"a": torch.zeros(10_000, dtype=torch.float64)}
    sent = there_and_back(one, Message(head=head), Message(head=head, n=1)).weights("head")["a"]
    assert float(sent.std()) == pytest.approx(noise, rel=0.05)
    one.merged({0: 1.0}, memory)
    assert float(memory[SPENT][0]) == spent


def test_an_untrusted_server_gets_no_bare_vote():
    for adder in ("clients together", "each client"):
        one = mod(adaptive=True, adder=adder, clip=1.0)
        before = Message(w={"a": torch.zeros(3)})
        server = out_of_server([one], before, Context(0, 1))
        votes = [
            into_client([one], server.message, Context(client, 1)).back(Message(**before, n=1)).number(VOTE)
            for client in range(400)
        ]
        assert np.std(votes) == pytest.approx(0.5 * 10 * one.noise, rel=0.1)


def test_secret_noise_is_normal_and_never_the_same():
    drawn = secret_normal((1000, 101))
    assert drawn.shape == (1000, 101)
    assert kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-4
    assert not torch.equal(drawn, secret_normal((1000, 101)))
    assert secret_normal(()).shape == ()


def test_whole_shares_add_up():
    assert whole_shares(torch.tensor([0.5, 0.25, 0.25]), 10).tolist() == [5, 3, 2]
    assert whole_shares(torch.tensor([-1.0, -1.0]), 3).sum() == 3
    assert whole_shares(torch.tensor([-1.0, 2.0]), 3).tolist() == [0, 3]


# --- epsilon ------------------------------------------------------------------------------------------------------


def test_epsilon_is_the_accountants():
    for z, times in ((5.0, 20), (1.0, 3), (20.0, 500)):
        exact = epsilon_of(times / z**2, 1e-5)
        pld, rdp = dp_accounting.pld.PLDAccountant(), dp_accounting.rdp.RdpAccountant()
        for accountant in (pld, rdp):
            accountant.compose(dp_accounting.GaussianDpEvent(z), times)
        assert exact == pytest.approx(pld.get_epsilon(1e-5), rel=1e-3)
        assert exact <= rdp.get_epsilon(1e-5) <= 1.3 * exact
    assert epsilon_of(0.0, 1e-5) == 0
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert epsilon_of(30 / noise_for(4.0, 1e-5, 30) ** 2, 1e-5) == pytest.approx(4.0, rel=1e-6)


def test_a_round_is_counted_by_who_was_there_and_what_they_weigh():
    one, memory = mod(), {}
    one.merged(dict.fromkeys(range(4), 10.0), memory)
    assert memory[SPENT].tolist() == pytest.approx([1.0] * 4)  # as planned: 1 / z^2
    one.merged({0: 10.0, 1: 10.0}, memory)  # two failed, and half of the noise with them
    assert memory[SPENT].tolist() == pytest.approx([3.0, 3.0, 1.0, 1.0])
    alone = {}
    one.merged({0: 30.0, 1: 10.0, 2: 10.0, 3: 10.0}, alone)
    shares = np.array([30, 10, 10, 10]) / 60
    expected = shares**2 / (np.square(shares).sum() / 4)
    np.testing.assert_allclose(alone[SPENT].numpy(), expected)
    local = {}
    mod(adder="each client").merged({2: 5.0}, local)
    assert local[SPENT].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(("name", "settings", "releases"), [
    ("fedavg", {}, 1), ("fedpac", SUMMED, 4), ("fedpac", HOME, 2), ("local", {}, 0)
])  # fmt: skip
def test_noise_made_for_a_budget_spends_it_and_no_more(name, settings, releases):
    done = finish(federation(name, 5, {"budget": 3.0, "clip": 1.0}, settings))
    dp = done.federation.dp
    assert dp.released == releases
    spent = [report.epsilon for report in done.reports]
    assert spent == sorted(spent)
    assert 1.5 < spent[-1] <= 3 if releases else spent == [0] * 5
    # clients have unequal shares: those with large ones spend more, and the run stops early
    assert done.federation.stopped if releases else not done.federation.stopped
    assert dp.guarantee().startswith("differential privacy per client (all its data at once), central")


def test_equal_shares_spend_a_budget_exactly(tmp_path):
    config = make_config(
        {"method": "fedavg", "model": "logistic", "data": {"dataset": "digits", "clients": 4, "samples": 10},
         "run": {"rounds": 4, "evaluate_every": 2, "engine": "serial"}, "privacy": {"budget": 5.0, "clip": 1.0}}
    )  # fmt: skip
    told = []
    summary = run(config, tmp_path / "run", callbacks=[lambda report: told.append(report.spent)])
    assert told[-1] == "epsilon 5.00 (delta 0.001, central, per client)"
    assert summary["privacy"]["epsilon"] == pytest.approx(5.0, rel=1e-4)
    assert summary["privacy"]["stopped"] is None
    assert "central" in summary["privacy"]["guarantee"]
    assert "sampling" in summary["privacy"]["guarantee"]


def test_a_run_stops_at_its_budget_and_says_so_also_after_a_resume(tmp_path):
    config = make_config(
        {"method": "fedavg", "model": "logistic", "data": {"dataset": "digits", "clients": 4, "samples": 10},
         "run": {"rounds": 9, "evaluate_every": 1, "engine": "serial"},
         "privacy": {"noise": 1.0, "budget": 6.0, "clip": 1.0}}
    )  # fmt: skip
    summary = run(config, tmp_path / "once")
    affordable = max(t for t in range(1, 20) if epsilon_of(t, 1e-3) <= 6)
    assert summary["rounds"] == affordable < 9
    assert summary["privacy"]["epsilon"] <= 6
    assert "privacy.budget = 6" in summary["privacy"]["stopped"]
    advance(config, tmp_path / "twice", callbacks=[lambda report: report.round == 2])
    again = resume(tmp_path / "twice")
    assert again["privacy"]["epsilon"] == summary["privacy"]["epsilon"]
    assert (tmp_path / "twice" / "metrics.csv").read_bytes() == (tmp_path / "once" / "metrics.csv").read_bytes()


def test_who_is_chosen_most_often_is_what_the_noise_is_made_for():
    plan = make_config({"run": {"rounds": 40, "participation": 0.3, "seed": 5}}).run
    assert 12 < most_often(10, plan) < 40
    assert most_often(10, make_config({"run": {"rounds": 40}}).run) == 40


def test_adaptive_clipping_finds_the_usual_length():
    one = mod(adaptive=True, clip=100.0, noise=0.1, clients=20, cohort=20)
    memory = {}
    before = Message(w={"a": torch.zeros(3)})
    for round in range(1, 61):
        for client in range(20):
            length = 1.0 + client / 10  # the median is 2
            after = Message(w={"a": torch.tensor([length, 0.0, 0.0])}, n=1)
            there_and_back(one, before, after, client, round, memory)
        one.merged(dict.fromkeys(range(20), 1.0), memory)
    assert float(memory[CLIP]) == pytest.approx(2.0, abs=0.5)
    plain = mod(clients=20, cohort=20, noise=0.1)
    assert one.cost == pytest.approx(plain.cost * 1.01)


# --- with methods -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_methods())
def test_every_method_is_protected_or_refuses_by_name(name):
    settings = SUMMED if name == "fedpac" else None
    try:
        protects = make_method(name, settings).protects()
    except ConfigError:
        protects = {}
    if protects:
        done = finish(federation(name, 2, {"noise": 0.01, "clip": 1.0}, settings))
        shares_nothing = name in ("local", "fedproto-l")
        assert done.reports[-1].epsilon == 0 if shares_nothing else done.reports[-1].epsilon > 0
    else:
        with pytest.raises(ConfigError, match=rf"method {name}.*differential privacy"):
            federation(name, 2, {"noise": 1.0, "clip": 1.0}, settings)


def test_fedpac_asks_for_centroids_as_sums():
    with pytest.raises(ConfigError, match="summed_centroids = true"):
        federation("fedpac", 2, {"noise": 1.0, "clip": 1.0})


def test_workers_draw_the_same_noise_and_encrypted_clients_draw_it_together():
    privacy = {"noise": 0.5, "clip": 1.0, "trust": "nobody"}
    serial = finish(federation("fedpac", 2, privacy, SUMMED))
    process = finish(federation("fedpac", 2, privacy, SUMMED, engine="process"))
    assert serial.scores() == process.scores()
    assert "local" in serial.federation.dp.guarantee()
    key = Parameters.for_clients(4).new_key()
    hidden = finish(federation("fedavg", 2, {"noise": 0.5, "clip": 1.0, "encryption": "ckks"}, key=key))
    assert "distributed" in hidden.federation.dp.guarantee()
    assert (
        hidden.reports[-1].epsilon == finish(federation("fedavg", 2, {"noise": 0.5, "clip": 1.0})).reports[-1].epsilon
    )


@pytest.mark.parametrize(("privacy", "reason"), [
    ({"noise": 1.0}, "needs privacy.clip"),
    ({"clip": 1.0}, "clipping alone hides nothing"),
])  # fmt: skip
def test_settings_that_protect_nothing_are_refused(privacy, reason):
    with pytest.raises(ConfigError, match=reason):
        make_config({"privacy": privacy})


def test_delta_must_be_small(tmp_path):
    config = small(2, "fedavg").model_copy(update={"privacy": PrivacyConfig(noise=1.0, clip=1.0, delta=0.3)})
    with pytest.raises(ConfigError, match="less than 1 / clients"):
        run(config, tmp_path / "run")


def test_no_noise_is_no_privacy_and_the_summary_says_so(tmp_path):
    config = small(2, "fedavg").model_copy(update={"privacy": PrivacyConfig(noise=0.0, clip=1.0)})
    run(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]["epsilon"] is None
