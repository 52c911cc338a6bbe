"""Clients that never took part: what each method gives them, and that nothing of them stays behind."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from studies.newcomers_page import filled

import fedpac
from fedpac.api import Result
from fedpac.data.clients import Scenario
from fedpac.engines.site import Outcome
from fedpac.errors import ConfigError, DataError, RunError
from fedpac.message import Message
from fedpac.methods import list_methods, make_method
from fedpac.mods import Float16
from fedpac.newcomers import Reception
from fedpac.testing.tiny import CLASSES, run_federation, tiny_data, visit
from fedpac.training import features
from helpers import assert_equal

NOTHING = {"local", "fedproto-g", "fedproto-l"}
LABELS_ONLY = {"fedbabu", "fedfomo", "fedpac", "fedper", "fedrep", "hypcluster", "lg-fedavg"}
GLOBAL = {"apfl", "ditto", "fedavg", "fedprox", "pfedme", "scaffold"}


def trained(name, data=None, rounds=2, **settings):
    data = tiny_data() if data is None else data
    done = run_federation(make_method(name, settings), rounds=rounds, data=data)
    scenario = Scenario(list(data), CLASSES, data[0].train.pool.x.shape[1:], "tiny")
    return Result(done.task, make_method(name, settings), scenario, done.server, done.states, [])


def stranger(size=6, classes=(0, 1), seed=0):
    """Samples of the same blobs as the participants', drawn anew."""
    return tiny_data((size,), [classes], seed=seed)[0].train.tensors()


def weights_of(model):
    return {name: tensor.clone() for name, tensor in model.module.state_dict().items()}


@pytest.mark.parametrize("name", list_methods())
def test_every_method_gives_what_it_says(name):
    result, (x, y) = trained(name), stranger()
    before, gets = Message(**result.server.state).to_bytes(), result.method.newcomer()
    if not gets.labelled:
        with pytest.raises(ConfigError, match=f"{result.method.title} shares no predictive part"):
            result.welcome(x, y)
    else:
        assert result.welcome(x, y).predict_proba(x).shape == (len(x), CLASSES)
        assert len(result.welcome(x[:1], y[:1]).predict(x)) == len(x)
    if not gets.without:
        with pytest.raises(ConfigError, match=result.method.title):
            result.welcome()
    else:
        assert len(result.welcome().predict(x)) == len(x)
    assert Message(**result.server.state).to_bytes() == before


def test_which_of_the_papers_methods_give_nothing_or_need_labels():
    gets = {name: make_method(name).newcomer() for name in list_methods()}
    assert {name for name, new in gets.items() if not new.labelled} >= NOTHING
    assert {name for name, new in gets.items() if new.labelled and not new.without} >= LABELS_ONLY


@pytest.mark.parametrize("name", sorted(GLOBAL))
def test_where_there_is_a_global_model_it_is_that(name):
    result = trained(name)
    for arguments in (stranger(), ()):
        assert_equal(weights_of(result.welcome(*arguments)), result.server.weights("w"))


# --- FedPAC ---------------------------------------------------------------------------------------------------------


def literal_alpha(server, statistics):
    """The minimiser of |h - sum_j alpha_j h_j|^2 + sum_j alpha_j^2 V_j / n_j, by a solver of somebody else's."""
    import cvxpy

    def h(s):
        return ((s["counts"] / s["counts"].sum())[:, None] * s["means"]).flatten().numpy()

    def variance(s):
        p = s["counts"].double() / s["counts"].sum()
        moment = float(s["scatter"]) + float((p * s["means"].square().sum(1)).sum())
        return moment - float(np.square(h(s)).sum())

    peers = [part for name, part in server.state.items() if name.startswith("statistics.")]
    H = np.stack([h(s) for s in peers])
    v = np.array([max(variance(s), 1e-9 * np.square(h(s)).sum()) / float(s["counts"].sum()) for s in peers])
    alpha = cvxpy.Variable(len(peers))
    loss = cvxpy.sum_squares(h(statistics) - H.T @ alpha) + cvxpy.sum(cvxpy.multiply(v, cvxpy.square(alpha)))
    cvxpy.Problem(cvxpy.Minimize(loss), [alpha >= 0, cvxpy.sum(alpha) == 1]).solve(solver=cvxpy.CLARABEL)
    return alpha.value


def test_fedpac_combines_a_head_by_the_same_programme_and_trains_nothing():
    result = trained("fedpac", tiny_data((9, 12, 7, 8)), rounds=3, cutoff=0.0)
    server, method = result.server, result.method
    x, y = stranger(8)
    asked = {}

    def ask(job):
        client = visit(result.task, tiny_data((8,), [(0, 1)]), 0)
        z = features(client, {**job.down.weights("w"), **job.down.weights("head")})
        asked["statistics"] = method.statistics(client, z)
        asked["up"] = method.introduce(client, job.down)
        return Outcome(job.client, asked["up"])

    down = Reception(method, server).welcome(4, len(x), ask)
    assert_equal(asked["up"].weights("statistics"), asked["statistics"])
    assert asked["up"].keys() == {"statistics", "n"}
    alpha = literal_alpha(server, asked["statistics"])
    heads = [part for name, part in server.state.items() if name.startswith("phi.")]
    for name, tensor in down.weights("head").items():
        expected = sum(a * head[name].double() for a, head in zip(alpha, heads, strict=True))
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-4, atol=1e-5)
    assert_equal(down.weights("w"), server.weights("w"))
    given = weights_of(result.welcome(x, y))
    assert_equal({name: given[name] for name in server.weights("w")}, server.weights("w"))


@pytest.mark.parametrize("covariance", ["identity", "pooled", "local"])
@pytest.mark.parametrize("centre", [False, True])
def test_a_newcomer_is_given_the_heads_of_those_who_are_like_it(covariance, centre):
    """Two groups of clients; whoever has one group's classes gets that group's heads."""
    data = tiny_data((30, 30, 30, 30), [(0, 1), (2, 3), (0, 1), (2, 3)])
    result = trained("fedpac", data, rounds=3, covariance=covariance, centre=centre)
    for classes, group in (((0, 1), (0, 2)), ((2, 3), (1, 3))):
        x, y = stranger(20, classes)
        given = weights_of(result.welcome(x, y))
        names = [name for name in given if name.startswith("head.")]
        heads = torch.stack([flat(result.server.weights(f"phi.{i}"), names) for i in range(4)])
        alpha = torch.linalg.lstsq(heads.T, flat(given, names)[:, None]).solution.flatten()
        assert float(alpha.sum()) == pytest.approx(1, abs=1e-3)
        assert float(alpha[list(group)].sum()) > 0.8


def flat(weights, names):
    return torch.cat([weights[name].double().flatten() for name in names])


def test_only_the_last_round_is_remembered():
    data = tiny_data((5,) * 6)
    method = make_method("fedpac")
    done = run_federation(method, rounds=3, data=data, participation=0.5)
    assert len([name for name in done.server.state if name.startswith("phi.")]) == 6  # everybody, in the last round
    federation = done.federation
    federation.task.rounds = 5
    report = federation.step()
    kept = {int(name.removeprefix("phi.")) for name in done.server.state if name.startswith("phi.")}
    assert kept == set(report.chosen)
    assert len(kept) == 3


def test_a_checkpoint_of_before_says_what_it_lacks():
    result = trained("fedpac")
    older = {k: v for k, v in result.server.state.items() if not k.startswith(("phi.", "statistics."))}
    result.server.state = older
    with pytest.raises(RunError, match=r"after round 2 there are none here.*fedpac resume RUN --rounds 3"):
        result.welcome(*stranger())


def test_without_collaboration_a_newcomer_trains_a_head_of_its_own():
    result = trained("fedpac", collaboration=False)
    assert not [name for name in result.server.state if name.startswith("phi.")]
    x, y = stranger(12)
    assert not torch.equal(weights_of(result.welcome(x, y))["head.weight"], result.task.initial["head.weight"])


# --- from outside -----------------------------------------------------------------------------------------------------


def images(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    x = rng.integers(0, 60, (n, 9, 9), dtype=np.uint8)
    for i, k in enumerate(y):
        x[i, 3 * k : 3 * k + 3] += 150
    return x, y


def test_images_are_normalised_as_the_participants():
    torch.manual_seed(0)
    model = fedpac.Classifier(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(81, 8), torch.nn.ReLU()), torch.nn.Linear(8, 3)
    )
    clients = [(*images(40, i), *images(10, 50 + i)) for i in range(3)]
    result = fedpac.fit(model, clients, "fedpac", rounds=6, lr=0.05, batch=8, engine="serial")
    x, y = images(30, 99)
    model = result.welcome(x, y)
    assert np.mean(model.predict(images(50, 100)[0]) == images(50, 100)[1]) > 0.9
    assert model.client == 3
    normalised = (torch.from_numpy(x).unsqueeze(1).float() / 255 - 0.5) / 0.5
    assert np.allclose(result.welcome(normalised, y).predict_proba(x), model.predict_proba(x), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x, y: (x, None), "pass x and y together"),
        (lambda x, y: (x[:, :3], y), r"the newcomer: samples are torch.float32 of shape \(3,\)"),
        (lambda x, y: (x, y + 9), "the newcomer: y has the label 10, allowed are 0 to 3"),
        (lambda x, y: (x, y[:-1]), "the newcomer: x has shape"),
        (lambda x, y: (x * torch.nan, y), "the newcomer: x has infinite or NaN values"),
    ],
)
def test_samples_that_do_not_fit_are_named(change, told):
    with pytest.raises(DataError, match=told):
        trained("fedpac").welcome(*change(*stranger()))


def test_statistics_that_cannot_be_are_refused():
    result = trained("fedpac")
    data = tiny_data((6,), [(0, 1)])

    def lie(job):
        hello = result.method.introduce(visit(result.task, data, 0), job.down)
        return Outcome(4, Message(**{**hello, "n": 7}))

    with pytest.raises(RunError, match="rejected: client 4: 'statistics'"):
        Reception(result.method, result.server).welcome(4, 6, lie)


def test_mods_stand_between_a_newcomer_and_the_server():
    plain, packed = trained("fedpac"), trained("fedpac")
    x, y = stranger()
    packed.task.mods = (Float16(),)
    one, other = (result.welcome(x, y).predict_proba(x) for result in (plain, packed))
    assert not np.array_equal(one, other)
    assert np.allclose(one, other, atol=0.05)


def test_the_page_shows_the_numbers_that_were_measured():
    """`python studies/newcomers_page.py` writes it again."""
    page = (Path(__file__).parent.parent / "docs" / "newcomers.md").read_text()
    assert filled(page) == page


def test_the_page_says_what_the_methods_say():
    page = (Path(__file__).parent.parent / "docs" / "newcomers.md").read_text()
    rows = re.findall(r"^\| (`.+?) \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    told = {name: row[1:] for row in rows for name in re.findall(r"`(.+?)`", row[0])}
    gets = {name: make_method(name).newcomer() for name in list_methods()}
    assert told == {
        name: (new.labelled or "nothing: it must participate", new.without or "nothing") for name, new in gets.items()
    }
