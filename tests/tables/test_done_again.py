"""Runs that came without their checkpoints, as in a fresh clone: they are done again, and nothing is lost."""

import subprocess
import sys

import pytest

from fedpac.errors import RunError
from fedpac.runs.execute import advance, resume
from fedpac.runs.folder import RunStore
from fedpac.runs.read import read_runs
from fedpac.tables.cells import fill
from small_table import TABLE, cells_of, contents, experiment


def test_a_run_without_its_checkpoint_is_done_again_and_stays_until_then(filled, tmp_path):
    """As in a fresh clone: unfinished results are in version control, checkpoints are not."""
    _, root = filled
    text = TABLE.replace("checkpoint_every = 100", "checkpoint_every = 2")
    cell, *_ = wanted = cells_of(experiment(tmp_path, text), tmp_path / "results", only="digits,6,fedpac")
    assert list(fill(wanted, rounds=4)) == [cell]
    (cell.folder / "checkpoint.safetensors").unlink()
    before = contents(cell.folder)
    with pytest.raises(RunError, match=r"has 4 rounds, but no checkpoint\.safetensors"):
        resume(cell.folder)

    with cell.claimed() as place:
        assert place != cell.folder
        advance(
            cell.config, place, callbacks=[lambda report: report.round == 3]
        )  # interrupted before it has come as far
    begun = contents(place)
    assert contents(cell.folder) == before
    assert [found.path for found in read_runs([cell.folder.parent])] == [cell.folder]

    leftover = place.with_name(f".{cell.folder.name}.replaced")  # of a call that was killed at the end
    (leftover / "something").mkdir(parents=True)
    with RunStore(cell.folder).locked():
        command = [sys.executable, "-m", "fedpac", "reproduce", "small.toml", "--out", "results"]
        command += ["--only", "digits,6,fedpac"]
        locked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "another process is working on it" in locked.stdout
    assert contents(cell.folder) == before  # nobody's folder is taken away while it is being written
    assert contents(place) == begun  # nor is its run done a second time meanwhile

    assert list(fill(wanted)) == [cell]
    assert [entry.name for entry in cell.folder.parent.iterdir()] == [cell.folder.name]
    for name in ("metrics.csv", "weights.csv"):
        same = root / cell.folder.relative_to(tmp_path / "results") / name
        assert (cell.folder / name).read_bytes() == same.read_bytes()
    assert len(RunStore(cell.folder).read_json("environment.json")["sessions"]) == 2  # those of the second time


@pytest.mark.parametrize("rounds", [1, 4])
def test_few_rounds_without_a_checkpoint_stay_too_and_a_restored_one_is_used(tmp_path, rounds):
    cell, *_ = wanted = cells_of(experiment(tmp_path), tmp_path / "results", only="digits,6,fedpac")
    assert list(fill(wanted, rounds=rounds)) == [cell]
    checkpoint = cell.folder / "checkpoint.safetensors"
    kept = checkpoint.read_bytes()
    checkpoint.unlink()
    place = cell.workplace
    assert place != cell.folder
    advance(cell.config, place, callbacks=[lambda report: True])
    checkpoint.write_bytes(kept)
    assert cell.workplace == cell.folder
