"""Encryption: sums are right to the promised error, the server can read nothing, and what is forged is refused."""

import json
import os

import numpy as np
import pytest
import torch

from fedpac.config import make_config
from fedpac.engines import SerialEngine, make_engine
from fedpac.errors import ConfigError, MessageError, TrainingError
from fedpac.federation import Federation
from fedpac.message import Message, Payload
from fedpac.methods import list_methods, make_method
from fedpac.mods.base import Context, into_client, out_of_server
from fedpac.mods.ckks import ABOUT, DATA, Ckks
from fedpac.mods.ckks_keys import Parameters, SiteKey, _contexts, write_key
from fedpac.privacy import KEY, PrivacyConfig
from fedpac.recipe import Recipe
from fedpac.runs.execute import advance, resume, run
from fedpac.task import Task
from fedpac.weights import weighted_sum
from helpers import CLASSES, INPUTS, RECIPE, Finished, tiny_data, tiny_model
from small_run import small

PARAMETERS = Parameters.for_clients(4)
SECRET = PARAMETERS.new_key()
ABLE = [name for name, kind in list_methods().items() if kind().sums() and kind().optimizer() is None]
ENCRYPTED = {"encryption": "ckks"}


def mod_for(method, secret=SECRET, clients=4):
    return PrivacyConfig(**ENCRYPTED).mods(method, clients, secret, make_config({}).run)[0]


def start(method, *mods, engine="serial", rounds=2, model="norm", **how):
    data = tiny_data()
    task = Task(
        tiny_model(model), CLASSES, Recipe(**RECIPE), 3, len(data), rounds, sample=torch.zeros(INPUTS), mods=mods
    )
    return Federation(task, method, make_engine(engine, task, method, data, 2), **how)


def finish(federation):
    with federation.engine:
        return Finished(federation.task, federation, list(federation.rounds()))


def opened(mod, part):
    """What a site makes of a part of the server's state."""
    return into_client([mod], Message(part=part.to_tensors()), Context(0, 1)).message.weights("part")


def sealed(mod, **parts):
    """What the server gets of a client's answer."""
    away = into_client([mod], Message(), Context(0, 1)).back(Message(**parts))
    return out_of_server([mod], Message(), Context(0, 1)).back(away)


# --- the numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "shares"), [(20, "equal"), (20, "one"), (300, "random")])
def test_a_weighted_sum_is_right_within_the_printed_error(clients, shares):
    parameters = Parameters.for_clients(clients)
    mod = Ckks(("w",), parameters, parameters.new_key())
    random = np.random.default_rng(0)
    known = [{"a": torch.from_numpy(random.normal(size=(50, 100))), "steps": torch.tensor(i)} for i in range(6)]
    picked = [i % 6 for i in range(clients)]
    share = {
        "equal": np.full(clients, 1 / clients),
        "one": np.eye(clients)[0],
        "random": random.dirichlet(np.ones(clients)),
    }
    coefficients = share[shares].tolist()
    total = opened(mod, weighted_sum([sealed(mod, w=known[i]).weights("w") for i in picked], coefficients))
    exact = sum(c * known[i]["a"] for i, c in zip(picked, coefficients, strict=True))
    off = float((total["a"] - exact).abs().max())
    assert 0 < off <= parameters.error <= 1e-7
    assert int(total["steps"]) == 0  # the first one's, as of open weights


def test_parameters_follow_the_number_of_clients():
    few, many, crowd = (Parameters.for_clients(n) for n in (20, 1000, 100_000))
    assert (few.depth, many.depth, crowd.depth) == (1, 1, 2)
    assert few.scale_bits < many.scale_bits < crowd.scale_bits
    assert sum(crowd.bits) <= 218  # 128-bit security in this ring
    assert f"{few.error:.1e}" in str(few)
    assert "ring 8192" in str(few)


@pytest.mark.parametrize("name", ABLE)
def test_methods_that_need_sums_only_learn_the_same_encrypted(name):
    method = make_method(name)
    mod = mod_for(method)
    plain, encrypted = finish(start(method)), finish(start(method, mod))
    for part, expected in plain.server.state.items():
        got = encrypted.server.state[part]
        if isinstance(got, Payload):
            got = opened(mod, got)
        if isinstance(expected, dict):
            for key, tensor in expected.items():
                torch.testing.assert_close(got[key], tensor, rtol=1e-4, atol=1e-5)
    for which in ("received", "personal"):
        assert encrypted.accuracies(which) == pytest.approx(plain.accuracies(which), abs=0.051)


@pytest.mark.parametrize("name", sorted(set(list_methods()) - set(ABLE)))
def test_other_methods_refuse_by_name(name):
    with pytest.raises(ConfigError, match=rf"method {name} (cannot run )?with privacy\.encryption.*(fedpac|method\.)"):
        mod_for(make_method(name))


def test_centroids_as_sums_are_the_same_centroids_and_can_be_encrypted():
    summed = make_method("fedpac", {"summed_centroids": True})
    usual, sums = finish(start(make_method("fedpac"), rounds=3)), finish(start(summed, rounds=3))
    means = usual.server.weights("centroids")["means"]
    shares = sums.server.weights("centroids")["shares"]
    found = sums.server.weights("centroids")["sums"] / shares.clamp(min=1e-9).unsqueeze(1)
    torch.testing.assert_close(found[shares > 0].float(), means[shares > 0], rtol=1e-4, atol=1e-5)
    mod = mod_for(summed)
    assert "centroids" in mod.parts
    hidden = finish(start(summed, mod, rounds=3))
    assert isinstance(hidden.server.state["centroids"], Payload)
    again = opened(mod, hidden.server.state["centroids"])["sums"]
    torch.testing.assert_close(again, sums.server.weights("centroids")["sums"], rtol=1e-4, atol=1e-5)


# --- who can read what --------------------------------------------------------------------------------------------


def test_the_server_has_no_key_and_equal_weights_look_different():
    context = PARAMETERS.server_context()
    assert not context.has_secret_key()
    mod = Ckks(("w",), PARAMETERS, SECRET)
    one, two = (sealed(mod, w={"a": torch.ones(5000)}).weights("w") for _ in range(2))
    assert not torch.equal(one.to_tensors()[DATA], two.to_tensors()[DATA])
    for vector in one.vectors:
        with pytest.raises(ValueError, match="secret_key"):
            vector.decrypt()
    with pytest.raises(ValueError, match="encryption"):
        __import__("tenseal").ckks_vector(context, [1.0])
    blind = Ckks(("w",), PARAMETERS)
    with pytest.raises(MessageError, match="has no key"):
        opened(blind, one)


def test_with_worker_processes_only_the_workers_ever_load_the_key(tmp_path):
    config = small(2, "fedpac", run__engine="process").model_copy(update={"privacy": PrivacyConfig(**ENCRYPTED)})
    run(config, tmp_path / "run")
    secret = tmp_path / "run" / KEY
    assert secret.stat().st_mode & 0o777 == 0o600
    name = SiteKey(secret.read_bytes(), PARAMETERS).name
    assert not any(pid == os.getpid() and name in what for pid, what in _contexts)
    assert SiteKey.of(secret, PARAMETERS).context().has_secret_key()


def test_nothing_that_the_server_keeps_or_hears_holds_a_weight(tmp_path):
    """After the first round, whose weights are the initial ones that the config names."""
    method = make_method("fedpac")
    mod = mod_for(method)
    heard = []

    class Listening(SerialEngine):
        def run(self, jobs):
            for outcome in super().run(jobs):
                heard.append(outcome.up.to_bytes() if outcome.up else b"")
                yield outcome
            heard.extend(job.down.to_bytes() for job in jobs if job.round > 1)

    federation = start(method, mod, rounds=3)
    federation.engine = Listening(federation.task, method, federation.engine.source)
    secrets = []
    for report in federation.rounds():
        for part in ("w", "head.0", "head.1"):
            weights = opened(mod, federation.server.state[part])
            secrets += [t.numpy().tobytes()[:12] for t in weights.values() if t.is_floating_point() and t.any()]
        kept = Message(**federation.server.state).to_bytes()
        assert report.round
        assert not any(secret in kept for secret in secrets)
    assert not any(secret in message for secret in secrets for message in heard)
    plain = start(method, rounds=1)
    plain.step()
    known = plain.server.weights("w")["body.0.weight"].numpy().tobytes()[:12]
    assert known in Message(**plain.server.state).to_bytes()  # the search finds what is there to be found


def test_with_a_secret_start_sites_begin_with_one_order_of_the_initial_weights_that_the_server_does_not_know():
    initial = {"a": torch.randn(50, 20), "steps": torch.tensor(3)}

    def begun(secret, **settings):
        mod = Ckks(("w",), PARAMETERS, secret, **settings)
        return into_client([mod], Message(w=initial, centroids=initial), Context(0, 1)).message

    one, again = (begun(SECRET, secret_start=True).weights("w") for _ in range(2))
    other = begun(PARAMETERS.new_key(), secret_start=True).weights("w")
    assert torch.equal(one["a"], again["a"])
    assert int(one["steps"]) == 3
    assert torch.equal(one["a"].flatten().sort().values, initial["a"].flatten().sort().values)
    for known in (initial["a"], other["a"]):
        assert float((one["a"] == known).float().mean()) < 0.05
    assert torch.equal(begun(SECRET, secret_start=True).weights("centroids")["a"], initial["a"])  # not encrypted ever
    assert torch.equal(begun(SECRET).weights("w")["a"], initial["a"])


def test_with_a_secret_start_the_readable_class_means_do_not_follow_from_the_seed():
    method = make_method("fedpac")
    settings = PrivacyConfig(**ENCRYPTED, secret_start=True)
    hidden = settings.mods(method, 4, SECRET, make_config({}).run)
    plain, secret = start(method), start(method, *hidden)
    for federation in (plain, secret):
        federation.step()
    known, sent = (f.server.weights("statistics.0")["means"] for f in (plain, secret))
    assert float((known - sent).norm() / known.norm()) > 0.3
    assert np.mean(finish(start(method, *hidden, rounds=8)).accuracies("received")) > 1.6 / CLASSES  # it learns


def test_a_run_goes_on_from_a_checkpoint_that_nobody_can_read(tmp_path):
    config = small(6, "fedpac").model_copy(update={"privacy": PrivacyConfig(**ENCRYPTED)})
    advance(config, tmp_path / "run", callbacks=[lambda report: report.round == 3])
    assert not (tmp_path / "run" / "summary.json").exists()
    summary = resume(tmp_path / "run")
    run(small(6, "fedpac"), tmp_path / "plain")
    plain = json.loads((tmp_path / "plain" / "summary.json").read_text())
    assert summary["received"]["final"]["mean"] == pytest.approx(plain["received"]["final"]["mean"], abs=0.026)


def test_two_sites_that_come_first_agree_on_one_key(tmp_path):
    made = [write_key(tmp_path / "at" / KEY, PARAMETERS) for _ in range(2)]
    assert made == [True, False]
    assert [file.name for file in (tmp_path / "at").iterdir()] == [KEY]
    (tmp_path / "at" / KEY).chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        SiteKey.of(tmp_path / "at" / KEY, PARAMETERS)


def test_a_key_for_another_number_of_sites_is_told():
    with pytest.raises(ConfigError, match="another number of sites than 900"):
        SiteKey(SECRET, Parameters.for_clients(900)).context()
    with pytest.raises(ConfigError, match="damaged"):
        SiteKey(SECRET[:-100], PARAMETERS).context()


# --- what is refused ----------------------------------------------------------------------------------------------


def forged(weights, **changes):
    about = json.loads(weights[ABOUT].numpy().tobytes())
    return {**weights, ABOUT: torch.frombuffer(bytearray(json.dumps({**about, **changes}).encode()), dtype=torch.uint8)}


def cut(weights):
    return {**weights, DATA: weights[DATA][:-1]}


def flipped(weights):
    data = weights[DATA].clone()
    data[len(data) // 2 :] ^= 0x55
    return {**weights, DATA: data}


def used_up(weights):
    mod = Ckks(("w",), PARAMETERS)
    return (mod.restored(weights) * 0.5).to_tensors()


def plain(weights):
    return {"body.0.weight": torch.zeros(3)}


FORGERIES = {
    "plain": (plain, "is not encrypted"),
    "cut": (cut, "do not match this run's parameters"),
    "flipped": (flipped, "do not match this run's parameters"),
    "used up": (used_up, "room for 0 multiplications"),
    "of another shape": (lambda w: forged(w, layout=[["body.0.weight", "float32", [1]]]), "do not match|holds"),
    "of another name": (
        lambda w: forged(w, layout=[[f"x{n}", k, s] for n, k, s in json.loads(w[ABOUT].numpy().tobytes())["layout"]]),
        "expected",
    ),
    "huge": (lambda w: forged(w, layout=[["a", "float32", [10**12]]]), "do not match this run's parameters"),
    "negative": (lambda w: forged(w, layout=[["a", "float32", [-1, -5]]]), "do not match this run's parameters"),
    "of no type": (lambda w: forged(w, layout=[["a", "pickle", [1]]]), "do not match this run's parameters"),
    "of another key": (lambda w: forged(w, key="0" * 16), "not encrypted with the same key"),
}


@pytest.mark.parametrize("which", FORGERIES)
def test_a_forged_ciphertext_is_refused_and_the_round_goes_on(which):
    forge, reason = FORGERIES[which]

    class Forging(SerialEngine):
        def run(self, jobs):
            for outcome in super().run(jobs):
                if outcome.up is not None and outcome.client == 1:
                    changed = {**outcome.up, "w": forge(outcome.up.weights("w"))}
                    object.__setattr__(outcome, "up", Message(**changed))
                yield outcome

    method = make_method("fedavg")
    federation = start(method, mod_for(method), min_replies=3)
    federation.engine = Forging(federation.task, method, federation.engine.source)
    report = federation.step()
    assert [(f.client, f.cause) for f in report.failed] == [(1, "refused")]
    assert __import__("re").search(reason, report.failed[0].reason), report.failed[0].reason


def test_ciphertexts_of_other_parameters_are_refused():
    other = Parameters.for_clients(1000)
    strange = into_client([Ckks(("w",), other, other.new_key())], Message(), Context(0, 1)).back(
        Message(w={"a": torch.ones(3)})
    )
    with pytest.raises(MessageError, match="parameters"):
        out_of_server([Ckks(("w",), PARAMETERS)], Message(), Context(0, 1)).back(strange)


def test_what_cannot_be_encrypted_or_was_encrypted_elsewhere_is_told():
    mod = Ckks(("w",), PARAMETERS, SECRET)
    for value in (1e7, float("nan"), float("inf")):
        with pytest.raises(TrainingError, match="'w' cannot be encrypted"):
            sealed(mod, w={"a": torch.tensor([1.0, value])})
    elsewhere = Ckks(("w",), PARAMETERS, PARAMETERS.new_key())
    with pytest.raises(MessageError, match="not encrypted with this site's key"):
        opened(elsewhere, sealed(mod, w={"a": torch.ones(2)}).weights("w"))


@pytest.mark.parametrize(
    ("section", "values", "reason"),
    [
        ("wire", {"compression": "top-k"}, "cannot be combined"),
        ("server", {"optimizer": "momentum"}, "server.optimizer = 'none'"),
        ("method", {"name": "scaffold"}, "method scaffold cannot run"),
        ("method", {"name": "fedpac-plus"}, r"needs method\.momentum = 0 and method\.control = false"),
        ("method", {"name": "fedpac-plus", "momentum": 0}, r"method\.control = false"),
        ("method", {"name": "fedpac-plus", "control": False}, r"method\.momentum = 0"),
    ],
)
def test_what_does_not_go_with_encryption_is_told_before_anything_is_written(tmp_path, section, values, reason):
    config = make_config({"model": "logistic", "data": {"dataset": "digits"}, section: values, "privacy": ENCRYPTED})
    with pytest.raises(ConfigError, match=reason):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_secret_start_needs_a_secret():
    with pytest.raises(ValueError, match=r"privacy\.secret_start needs privacy\.encryption = 'ckks'"):
        PrivacyConfig(secret_start=True)
