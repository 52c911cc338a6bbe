"""Encryption between a server and sites: who has the key, who is turned away, and what the server's memory holds."""

import os
import stat
import sys
import threading
from pathlib import Path

import pytest
import torch
from memory_grid import MemoryGrid, directory_of
from processes import Federation, finished, rounds_in, until

from fedpac.config import changed, make_config
from fedpac.data.scenario import build
from fedpac.deploy.certs import SITES_ONLY, make_certificates, refuse_ckks_key
from fedpac.deploy.desk import Desk
from fedpac.engines.flower.engine import FlowerEngine
from fedpac.errors import ConfigError
from fedpac.message import Message, Payload
from fedpac.mods.base import Context, into_client
from fedpac.mods.ckks import DATA
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
    assert any("has no key for it: --ckks" in line for line in said)
    plain, said = over_a_grid(tmp_path / "plain", small(2, "fedpac", run__min_replies=3), [None, None, None, key])
    assert list(plain.engine.available()) == [0, 1, 2]
    assert any("sends encrypted weights only" in line for line in said)


def test_a_site_with_another_key_is_refused_and_the_others_go_on(tmp_path, key):
    write_key(tmp_path / "other" / KEY, Parameters.for_clients(4))
    config = encrypted(2, run__min_replies=3)
    federation, _ = over_a_grid(tmp_path, config, [key, key, tmp_path / "other" / KEY, key])
    report = federation.step()
    assert {f.client for f in report.failed} == {2}
    assert "another key" in report.failed[0].reason


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
    with pytest.raises(ConfigError, match="the server must not have"):
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
    assert "all sites get the same one" in said


# --- what is in the memory of the server's processes ----------------------------------------------------------------

REMEMBERING = '''
from fedpac.methods.fedpac import FedPAC

class Remembering(FedPAC):
    """FedPAC whose clients keep what they send, so that a test knows what to look for."""
    name = "remembering"
    title = "Remembering"

    def local(self, client, down):
        up = super().local(client, down)
        client.state["sent"] = {**up.weights("w"), **up.weights("head")}
        client.state["received"] = {**down.weights("w"), **down.weights("head")}
        return up
'''


def needles(states: Path, latest: int) -> list[bytes]:
    """Eight neighbouring weights from each tensor that a site sent or received after the first round."""
    found = []
    for file in states.rglob("client-*-round-*.safetensors"):
        if int(file.stem.rsplit("-", 1)[1]) < 2:
            continue
        kept = Message.from_bytes(file.read_bytes())
        for part in ("sent", "received"):
            for tensor in kept.weights(part).values():
                middle = tensor.numel() // 2
                piece = tensor.flatten()[middle : middle + 8].numpy().tobytes()
                if len(piece) == 32 and len(set(piece)) > 8:
                    found.append(piece)
    return found


def memory_of(process: int):
    """All that a process can read and write, region by region."""
    maps = Path(f"/proc/{process}/maps").read_text().splitlines()
    with open(f"/proc/{process}/mem", "rb", 0) as memory:
        for line in maps:
            place, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            start, end = (int(at, 16) for at in place.split("-"))
            try:
                memory.seek(start)
                yield memory.read(end - start)
            except (OSError, ValueError, OverflowError):
                continue


def family(process: int) -> list[int]:
    """A process and all that descend from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found = [process]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def seen_in_memory(tmp_path, monkeypatch, config, *site_options) -> tuple[int, int, list[int]]:
    """How many needles the server's processes and files hold, of how many, in which processes, during a run."""
    (tmp_path / "remembering.py").write_text(REMEMBERING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path)
    made = Federation(tmp_path, sites=4)
    stated = tmp_path / "data.toml"
    stated.write_text(config.to_toml())
    out = tmp_path / "run"
    with made.service:
        sites = [made.join(i, stated, "--own-methods", *site_options) for i in range(4)]
        for site in sites:
            site.__enter__()
        runner = threading.Thread(target=lambda: made.run(config, out), daemon=True)
        runner.start()
        try:
            until(lambda: rounds_in(out) >= 4, 1200, "four rounds")
            looked_for = needles(tmp_path / "state", 4)
            server = made.service.link.process.pid
            hits, where = set(), []
            for process in family(server):
                for region in memory_of(process):
                    new = {needle for needle in looked_for if needle in region}
                    where += [process] if new else []
                    hits |= new
            for file in [*out.rglob("*"), *made.service.link.folder.rglob("*")]:
                if file.is_file():
                    data = file.read_bytes()
                    hits |= {needle for needle in looked_for if needle in data}
            return len(hits), len(looked_for), where
        finally:
            for site in sites:
                site.__exit__(None, None, None)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="reads another process's memory")
def test_the_memory_of_the_servers_processes_never_holds_a_weight(tmp_path, monkeypatch):
    """SuperLink, the server's app and their files, while a run is on: every weight that a site sent or received."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "remembering.py").write_text(REMEMBERING)
    method = "remembering:Remembering"
    plain = tmp_path / "plain"
    plain.mkdir()
    found, of, where = seen_in_memory(plain, monkeypatch, small(400, method))
    assert of > 10
    assert found > 0.1 * of, "the search finds plain weights where there are some"
    assert where
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    write_key(hidden / KEY, Parameters.for_clients(4))
    found, of, where = seen_in_memory(hidden, monkeypatch, encrypted(400, method), "--ckks", str(hidden / KEY))
    assert of > 10
    assert (found, where) == (0, [])
    secret = (hidden / KEY).read_bytes()
    assert DATA  # ciphertexts were there, and the key was not: it is a file that no process of the server opens
    assert len(secret) > 100_000
