"""Real processes, TLS and keys: the serial engine's numbers, bit for bit, and nobody in who should not be."""

import os
import signal
import stat

import httpx
import numpy as np
import pytest
from processes import Federation, command, finished, rounds_in, until

from fedpac.bundles import load_model
from fedpac.data.scenario import build
from fedpac.deploy.certs import make_certificates
from fedpac.deploy.superlink import free_port
from fedpac.methods import list_methods
from fedpac.runs.execute import run
from fedpac.training import evaluate
from small_run import small

pytestmark = pytest.mark.slow  # minutes, until their share of the ordinary suite has been measured

PATIENT = 600.0  # seconds: the machine that the tests run on may be busy
FAMILIES = ("fedpac", "scaffold", "ditto", "fedrep", "fedem", "pfedhn", "hypcluster")
SAME = ("metrics.csv", "weights.csv", "clients.csv")


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Four sites that stay for every run of this file."""
    made = Federation(tmp_path_factory.mktemp("federation"))
    config = made.folder / "data.toml"
    config.write_text(small(3).to_toml())
    with made.service:
        sites = [made.join(i, config, "--stay") for i in range(4)]
        for site in sites:
            site.__enter__()
        yield made
        for site in sites:
            site.__exit__(None, None, None)


def same_numbers(federation, tmp_path, method):
    config = small(3, method, run__evaluate_every=1)
    run(config.model_copy(update={"run": config.run.model_copy(update={"engine": "serial"})}), tmp_path / "serial")
    federation.run(config, tmp_path / "flower")
    for name in SAME:
        assert (tmp_path / "flower" / name).read_bytes() == (tmp_path / "serial" / name).read_bytes(), name


@pytest.mark.parametrize("method", FAMILIES[:2])
def test_the_numbers_are_the_serial_ones(federation, tmp_path, method):
    same_numbers(federation, tmp_path, method)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(set(list_methods()) - set(FAMILIES[:2])))
def test_the_numbers_of_the_other_methods_are_the_serial_ones(federation, tmp_path, method):
    same_numbers(federation, tmp_path, method)


def test_each_site_keeps_its_model_for_itself(federation, tmp_path):
    config = small(2, "fedpac", run__evaluate_every=1)
    federation.run(config, tmp_path / "run")
    scenario = build(config.data, config.run.seed)
    federation_id = (tmp_path / "run" / ".federation").read_text()[:12]
    for client, name in enumerate(federation.names):
        folder = federation.folder / "state" / name / federation_id
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.rglob("*") if file.is_file()} == {0o600}
        model = load_model(folder / "model")
        accuracy, _ = evaluate(model.module, *scenario.clients[client].test.tensors())
        last = [line for line in (folder / "metrics.csv").read_text().splitlines() if line.startswith("2,received")]
        assert last[0].split(",")[2] == repr(accuracy)
        assert f"# {name}" in (folder / "report.md").read_text()


# --- who is refused -----------------------------------------------------------------------------------------------


def joined(federation, tmp_path, *more, patience=120):
    return finished(
        tmp_path,
        "join",
        federation.address,
        "--state",
        tmp_path / "state",
        "--data",
        tmp_path,
        *more,
        patience=patience,
    )


def test_a_control_call_from_a_site_is_refused(federation):
    ca = str(federation.certificates / "ca.crt")
    with httpx.Client(verify=ca, base_url=f"https://{federation.address}", timeout=60) as site:
        for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/push-messages", "/docs"):
            assert site.post(path, content=b"").status_code == 403
        assert site.post("/v1/fleet/register-node", content=b"").status_code == 403
        assert site.get("/openapi.json").status_code == 403
        assert site.post("/v1/fleet/../control/start-run", content=b"").status_code == 403
        assert site.post("/v1/fleet/pull-messages", content=b"").status_code in (400, 401, 422)  # no key, no messages


def test_plain_text_is_refused(federation):
    with pytest.raises(httpx.TransportError), httpx.Client(timeout=60) as site:
        site.post(f"http://{federation.address}/v1/fleet/pull-messages", content=b"")


def test_a_server_that_another_ca_vouches_for_is_not_trusted(federation, tmp_path):
    make_certificates(tmp_path / "other", ["localhost"], [])
    key = federation.certificates / "sites" / "client-0.key"
    code, output = joined(federation, tmp_path, "--ca", tmp_path / "other" / "ca.crt", "--key", key)
    assert code == 1
    assert "does not vouch for" in " ".join(output.split())


def test_no_key_is_refused(federation, tmp_path):
    code, output = joined(federation, tmp_path)
    assert code == 1
    assert "a site needs the CA's certificate and its own key" in output


def test_a_key_that_others_can_read_is_refused(federation, tmp_path):
    make_certificates(tmp_path / "keys", ["localhost"], ["open"])
    key = tmp_path / "keys" / "sites" / "open.key"
    key.chmod(0o644)
    code, output = joined(federation, tmp_path, "--ca", federation.certificates / "ca.crt", "--key", key)
    assert code == 1
    assert "others can read the key" in output


@pytest.mark.parametrize("key", ["stranger", "client-0"])
def test_an_unregistered_key_and_one_that_is_in_use_are_refused(federation, tmp_path, key, monkeypatch):
    from fedpac.deploy import persistent
    from fedpac.deploy.desk import Desk, own_data
    from fedpac.errors import RunError

    make_certificates(tmp_path / "keys", ["localhost"], ["stranger"])
    folder = federation.certificates if key == "client-0" else tmp_path / "keys"
    door = persistent.Door(federation.address, federation.certificates / "ca.crt", folder / "sites" / f"{key}.key")
    with pytest.raises(RunError, match="refuses this site"):
        persistent.stay(door, Desk(key, tmp_path / "state", own_data(tmp_path)), lambda line: None, patience=1.0)


# --- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.fixture
def clinics(tmp_path):
    """federation.toml and the data of three sites: their own files, which only they have."""
    scenario = build(small().data, 0)
    sites = ("a", "b", "c")
    for i, name in enumerate(sites):
        client = scenario.clients[i]
        arrays = {}
        for split, part in (("train", client.train), ("test", client.test)):
            arrays[f"x_{split}"] = part.pool.x[part.index].numpy()
            arrays[f"y_{split}"] = part.labels().numpy()
        (tmp_path / "data" / name).mkdir(parents=True)
        np.savez(tmp_path / "data" / name / "samples.npz", **arrays)
    make_certificates(tmp_path / "certs", ["localhost"], sites)
    (tmp_path / "federation.toml").write_text(
        f"""model = "logistic"
method = {{ name = "scaffold" }}
training = {{ epochs = 1, batch = 10 }}
run = {{ rounds = 6, evaluate_every = 1, min_replies = 2, deadline = 60.0 }}
federation = {{ sites = {list(sites)}, classes = {scenario.classes}, shape = {list(scenario.shape)} }}
"""
    )
    return tmp_path


def served(folder, port, *more):
    return command(
        folder, "serve", folder / "federation.toml", "--address", f"127.0.0.1:{port}", "--certs", folder / "certs",
        "--out", folder / "run", *more,
    )  # fmt: skip


def joins(folder, port, name, *more):
    return command(
        folder, "join", f"127.0.0.1:{port}", "--data", folder / "data" / name, "--state", folder / "state" / name,
        "--ca", folder / "certs" / "ca.crt", "--key", folder / "certs" / "sites" / f"{name}.key", *more,
    )  # fmt: skip


def test_the_server_refuses_to_start_without_certificates(fedpac, clinics):
    code, _, err = fedpac("serve", clinics / "federation.toml", "--out", clinics / "run")
    assert code == 1
    assert "certificates" in err
    assert not (clinics / "run").exists()


def test_a_run_of_real_sites_is_no_simulation(fedpac, clinics):
    code, _, err = fedpac("run", clinics / "federation.toml", "--out", clinics / "run")
    assert code == 1
    assert "fedpac serve" in err


@pytest.mark.slow
def test_a_killed_site_comes_back_and_a_killed_server_goes_on(clinics):
    port = free_port()
    with (
        served(clinics, port, "--patience", "300") as server,
        joins(clinics, port, "a") as a,
        joins(clinics, port, "b"),
    ):
        with joins(clinics, port, "c") as c:
            until(lambda: rounds_in(clinics / "run") >= 1, PATIENT, "the first round")
            c.send_signal(signal.SIGKILL)
        with joins(clinics, port, "c") as again:  # refused at first, then let in with its state
            until(lambda: rounds_in(clinics / "run") >= 2, PATIENT, "a round without the killed site")
            server.send_signal(signal.SIGKILL)
            server.wait()
            before = rounds_in(clinics / "run")
            with served(clinics, port, "--patience", "300") as restarted:
                assert restarted.wait(PATIENT) == 0, restarted.log.read_text()
                assert again.wait(120) == 0, again.log.read_text()
                assert a.wait(120) == 0, a.log.read_text()
    assert rounds_in(clinics / "run") == 6 >= before
    rows = [line.split(",")[:3] for line in (clinics / "run" / "metrics.csv").read_text().splitlines()[1:]]
    assert len(rows) == len({tuple(row) for row in rows}), "a result was counted twice"
    assert list((clinics / "state" / "c").glob("*/model/weights.safetensors"))


@pytest.mark.slow
def test_a_federation_of_own_files_gives_the_serial_numbers(clinics):
    from fedpac.config import make_config, parse_toml

    values = parse_toml((clinics / "federation.toml").read_text(), "it")
    del values["federation"]
    values["run"] |= {"engine": "serial", "min_replies": 3}
    flat = clinics / "all"
    flat.mkdir()
    for name in "abc":
        os.link(clinics / "data" / name / "samples.npz", flat / f"{name}.npz")
    values["data"] = {"scenario": "natural", "path": str(flat), "min_samples": 2}
    run(make_config(values), clinics / "serial")
    port = free_port()
    with (
        served(clinics, port, "--patience", PATIENT) as server,
        joins(clinics, port, "a"),
        joins(clinics, port, "b"),
        joins(clinics, port, "c"),
    ):
        assert server.wait(PATIENT) == 0, server.log.read_text()
    assert (clinics / "run" / "metrics.csv").read_bytes() == (clinics / "serial" / "metrics.csv").read_bytes()
    assert "class_0" not in (clinics / "run" / "clients.csv").read_text()


@pytest.mark.slow
def test_a_stock_supernode_gives_the_same_numbers(tmp_path):
    made = Federation(tmp_path / "federation", sites=2)
    config = small(2, "ditto", data__clients=2, run__evaluate_every=1)
    run(config.model_copy(update={"run": config.run.model_copy(update={"engine": "serial"})}), tmp_path / "serial")
    stated = made.folder / "data.toml"
    stated.write_text(config.to_toml())
    with made.service, made.join(0, stated, "--stock"), made.join(1, stated):
        made.run(config, tmp_path / "run", patience=PATIENT)
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == (tmp_path / "serial" / "metrics.csv").read_bytes()
