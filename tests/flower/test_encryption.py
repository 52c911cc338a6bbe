"""Encryption between a server and sites: who has the key, and who is turned away."""

import stat

import pytest
import torch
from memory_grid import MemoryGrid, directory_of
from processes import finished

from fedpac.config import make_config
from fedpac.config_values import changed
from fedpac.data.scenario import build
from fedpac.deploy.certs import SITES_ONLY, make_certificates, refuse_ckks_key
from fedpac.deploy.desk import Desk
from fedpac.engines.flower.engine import FlowerEngine
from fedpac.errors import ConfigError
from fedpac.message import Message, Payload
from fedpac.mods.base import Context, into_client
from fedpac.mods.ckks_keys import Parameters, write_key
from fedpac.privacy import KEY
from fedpac.runs.execute import make_federation, make_task
from small_run import small


def encrypted(rounds=3, method="fedpac", **more):
    values = small(rounds, method, **more).model_dump(exclude_none=True, mode="json")
    return make_config(changed(values, "privacy.encryption", "ckks"))


def over_a_grid(folder, config, keys):
    """A federation whose sites have these keys, and the grid that carries its messages."""
    scenario = build(config.data, 0)
    desks = {
        100 + i: Desk(f"client-{i}", folder / f"client-{i}", lambda s, c, client: scenario.clients[client], ckks=key)
        for i, key in enumerate(keys)
    }
    grid = MemoryGrid(desks)
    task, method, said = make_task(config, scenario), config.make_method(), []
    engine = FlowerEngine(task, method, directory_of(grid, config, scenario, said), None, len(keys) - 1, 0.0)
    return make_federation(config, task, method, engine), said


@pytest.fixture
def key(tmp_path):
    write_key(tmp_path / KEY, Parameters.for_clients(4))
    return tmp_path / KEY


def test_sites_with_the_key_learn_and_the_server_adds_up_what_it_cannot_read(tmp_path, key):
    config = encrypted(3, run__evaluate_every=1)
    federation, _ = over_a_grid(tmp_path, config, [key] * 4)
    reports = list(federation.rounds())
    assert len(reports[-1].accuracies("received")) == 4
    (mod,) = federation.task.mods
    assert mod.site is None
    assert all(isinstance(federation.server.state[part], Payload) for part in ("w", "head.0", "head.3"))
    # a site can read the result, and it is the one that plain weights give
    site = make_task(config, build(config.data, 0), key=key).mods
    sealed = federation.server.state["head.0"].to_tensors()
    head = into_client(site, Message(head=sealed), Context(0, 1)).message.weights("head")
    plain_config = small(3, "fedpac", run__evaluate_every=1)
    plain, _ = over_a_grid(tmp_path / "plain", plain_config, [None] * 4)
    for _ in plain.rounds():
        pass
    for name, tensor in plain.server.weights("head.0").items():
        torch.testing.assert_close(head[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_site_without_the_key_or_with_one_for_plain_weights_does_not_take_part(tmp_path, key):
    federation, said = over_a_grid(tmp_path, encrypted(2, run__min_replies=3), [key, key, key, None])
    assert list(federation.engine.available()) == [0, 1, 2]
    assert any("has no key: --ckks" in line for line in said)
    plain, said = over_a_grid(tmp_path / "plain", small(2, "fedpac", run__min_replies=3), [None, None, None, key])
    assert list(plain.engine.available()) == [0, 1, 2]
    assert any("only sends encrypted weights" in line for line in said)


def test_a_site_with_another_key_is_refused_and_the_others_go_on(tmp_path, key):
    write_key(tmp_path / "other" / KEY, Parameters.for_clients(4))
    config = encrypted(2, run__min_replies=3)
    federation, _ = over_a_grid(tmp_path, config, [key, key, tmp_path / "other" / KEY, key])
    report = federation.step()
    assert {f.client for f in report.failed} == {2}
    assert "not encrypted with the same key" in report.failed[0].reason


def test_the_key_is_for_sites_only(tmp_path):
    with pytest.raises(ConfigError, match="--site"):
        make_certificates(tmp_path / "none", ["localhost"], [], ckks=True)
    written = make_certificates(tmp_path / "certs", ["localhost"], ["a", "b"], ckks=True)
    path = tmp_path / "certs" / SITES_ONLY / KEY
    assert path in written
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert path not in make_certificates(tmp_path / "certs", [], ["c"], ckks=True)
    assert path.read_bytes() == before  # what is there is kept: other sites have it already
    with pytest.raises(ConfigError, match="the server must not hold"):
        refuse_ckks_key(tmp_path / "certs")
    path.unlink()
    refuse_ckks_key(tmp_path / "certs")


@pytest.mark.slow
def test_a_site_must_be_given_the_key_of_the_others(tmp_path):
    make_certificates(tmp_path / "certs", ["localhost"], ["a"])
    common = ("--state", tmp_path / "s", "--data", tmp_path, "--ca", tmp_path / "certs" / "ca.crt")
    code, said = finished(
        tmp_path, "join", "localhost:1", *common, "--key", tmp_path / "certs/sites/a.key", "--ckks", tmp_path / "none"
    )
    assert code != 0
    assert "all sites need the same one" in said
