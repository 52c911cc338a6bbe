"""A model of 50 MB between real processes: it travels in parts, and the gate lets its answers through."""

import numpy as np
import pytest
import tomli_w
from processes import command, running, until

from fedpac.config import make_config
from fedpac.deploy.certs import make_certificates
from fedpac.deploy.superlink import free_port
from fedpac.deploy.trial import join_command
from fedpac.runs.execute import run

pytestmark = pytest.mark.slow
SHAPE = (1, 1000, 1250)  # ten outputs of a linear model: 50 MB
STATED = {"method": "scaffold", "model": "logistic", "training": {"epochs": 1, "batch": 2}}  # 100 MB each way


def test_50_mb_each_way(tmp_path):
    (tmp_path / "data").mkdir()
    for i, name in enumerate("ab"):
        x = np.random.default_rng(i).normal(size=(6, *SHAPE)).astype(np.float32)
        y = np.arange(4, 10)  # the largest label says how many classes a simulation has
        np.savez(tmp_path / "data" / f"{name}.npz", x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:])
    make_certificates(tmp_path / "certs", ["localhost"], "ab")
    federation = {"sites": ["a", "b"], "classes": 10, "shape": SHAPE}
    rounds = {"rounds": 2, "evaluate_every": 1}
    (tmp_path / "federation.toml").write_text(tomli_w.dumps({**STATED, "run": rounds, "federation": federation}))
    place, certs = f"127.0.0.1:{free_port()}", tmp_path / "certs"

    def join(name):
        data = ["--data", str(tmp_path / "data" / f"{name}.npz")]
        return running([*join_command(place, name, certs, tmp_path / "state" / name), *data], tmp_path, name)

    serve = ("serve", tmp_path / "federation.toml", "--address", place, "--certs", certs, "--out", tmp_path / "run")
    with command(tmp_path, *serve) as server, join("a"), join("b"):
        until(lambda: server.poll() is not None, 600, "the run")
        assert server.poll() == 0, server.log.read_text()
    natural = {"scenario": "natural", "path": str(tmp_path / "data"), "min_samples": 2}
    run(make_config({**STATED, "run": {**rounds, "engine": "serial"}, "data": natural}), tmp_path / "serial")
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == (tmp_path / "serial" / "metrics.csv").read_bytes()
    assert int((tmp_path / "run" / "rounds.csv").read_text().splitlines()[-1].split(",")[-1]) > 2 * 50e6
    assert list((tmp_path / "state").glob("*/*/model/weights.safetensors"))
