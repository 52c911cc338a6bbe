"""Real processes, TLS and keys: the serial engine's numbers, bit for bit; what is left at the sites and the server."""

import stat

import pytest

from fedpac.bundles import load_model
from fedpac.config import make_config
from fedpac.config_values import changed
from fedpac.data.scenario import build
from fedpac.deploy.desk import folder_of
from fedpac.methods import list_methods
from fedpac.runs.execute import run
from fedpac.training import evaluate
from small_run import small

pytestmark = pytest.mark.xdist_group("federation")

FAMILIES = ("fedpac", "scaffold", "ditto", "fedrep", "fedem", "pfedhn", "hypcluster")
SAME = ("metrics.csv", "weights.csv", "clients.csv")


def serial(config, folder):
    run(make_config(changed(config.model_dump(exclude_none=True), "run.engine", "serial")), folder)


def same_numbers(federation, folder, methods):
    for method in methods:
        config = small(3, method, run__evaluate_every=1)
        federation.run(config, folder / method)
        serial(config, folder / f"{method}-serial")
        for name in SAME:
            ours, theirs = folder / method / name, folder / f"{method}-serial" / name
            assert ours.read_bytes() == theirs.read_bytes(), f"{method}: {name}"


def test_methods_of_every_family_give_the_serial_numbers(federation, tmp_path):
    same_numbers(federation, tmp_path, FAMILIES)
    sites_keep_their_models(federation, tmp_path / "fedpac", small(3, "fedpac"))


def sites_keep_their_models(federation, out, config):
    scenario = build(config.data, config.run.seed)
    for client, name in enumerate(federation.names):
        folder = folder_of(federation.folder / "state" / name, (out / ".federation").read_text())
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.rglob("*") if file.is_file()} == {0o600}
        accuracy, _ = evaluate(load_model(folder / "model").module, *scenario.clients[client].test.tensors())
        last = [line for line in (folder / "metrics.csv").read_text().splitlines() if line.startswith("3,received")]
        assert last[0].split(",")[2] == repr(accuracy)
        assert f"# {name}" in (folder / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(list_methods()))
def test_every_method_gives_the_serial_numbers(federation, tmp_path, method):
    same_numbers(federation, tmp_path, [method])
