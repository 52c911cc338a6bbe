"""Filling a table of our own: interrupted, in parts, by two processes."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpac.config import make_config
from fedpac.errors import RunError
from fedpac.runs.execute import run
from fedpac.runs.folder import RunStore
from fedpac.runs.read import read_run
from fedpac.tables import cells
from fedpac.tables.cells import fill
from small_table import TABLE, cells_of, contents, experiment, filled_table


def test_a_by_product_is_what_its_own_method_gives(filled, tmp_path):
    small, root = filled
    config = small.config("digits,6", "fedavg", 0).model_dump(exclude_none=True)
    run(make_config({**config, "method": "fedavg-ft"}), tmp_path / "own")
    own = read_run(tmp_path / "own")
    row = next(o for o in filled_table(small, root).rows["digits,6"] if o.row == "fedavg-ft")
    assert row.which == own.reported == "personal"
    assert row.runs[0].accuracy["personal"][6].tolist() == own.accuracy["personal"][6].tolist()


def test_what_is_there_is_not_run_again(filled, monkeypatch):
    small, root = filled
    monkeypatch.setattr("fedpac.tables.cells.advance", lambda *a: pytest.fail("a finished cell was run again"))
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert list(fill(cells_of(small, root))) == []
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_in_parts_is_as_in_one_go(filled, tmp_path):
    small, root = filled
    wanted = cells_of(small, tmp_path)
    assert len(list(fill(wanted, rounds=3))) == len(wanted)
    assert {cell.done() for cell in wanted} == {3}
    assert not any(RunStore(cell.folder).finished for cell in wanted)
    assert list(fill(wanted, rounds=2)) == []  # they have come further already
    assert len(list(fill(wanted, rounds=100))) == len(wanted)
    assert contents(tmp_path) == contents(root)


def test_no_minutes_run_nothing(tmp_path):
    small = experiment(tmp_path)
    assert list(fill(cells_of(small, tmp_path / "results"), minutes=0)) == []
    assert not (tmp_path / "results").exists()


def test_out_of_time_in_the_middle_of_a_cell(filled, tmp_path, monkeypatch):
    small, root = filled
    wanted = cells_of(small, tmp_path, only="digits,6")
    clock = iter(range(1000))
    monkeypatch.setattr(cells, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    assert [c.row for c in fill(wanted, minutes=9 / 60)] == ["fedpac"]  # a look at the clock takes a second
    monkeypatch.undo()
    assert wanted[0].done() == 6
    assert 0 < wanted[1].done() < 6
    assert [c.row for c in fill(wanted)] == ["fedavg", "fedpac-cc"]
    reached = contents(tmp_path)
    assert reached == {name: data for name, data in contents(root).items() if name in reached}


def test_a_run_that_was_moved_away_is_not_in_the_way(filled, tmp_path):
    small, root = filled
    shutil.copytree(root, tmp_path / "results")
    folder = tmp_path / "results" / "digits-6"
    (folder / "fedavg-seed0").rename(folder / "fedavg-seed0-old")
    assert {row.row: len(row.runs) for row in filled_table(small, tmp_path / "results").rows["digits,6"]}["fedavg"] == 0


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Another process writes in that folder."""
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print(); time.sleep(60)"
    command = [sys.executable, "-u", "-c", code, str(folder / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            yield
        finally:
            holder.kill()


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_cell_that_another_process_has_is_left_to_it(tmp_path, checkpoint):
    """Also one that it has begun so lately that there is no checkpoint yet."""
    small = experiment(tmp_path)
    wanted = cells_of(small, tmp_path / "results", only="digits,6")
    list(fill(wanted[:1], rounds=1))
    if not checkpoint:
        (wanted[0].folder / "checkpoint.safetensors").unlink()
    with held(wanted[0].folder):
        assert [cell.row for cell in fill(wanted)] == ["fedavg", "fedpac-cc"]
    assert wanted[0].done() == 1
    assert not list(wanted[0].folder.parent.glob(".*"))


def test_another_run_in_the_cells_folder_is_an_error(filled, tmp_path):
    _, root = filled
    shutil.copytree(root, tmp_path / "results")
    other = experiment(tmp_path, TABLE.replace("rounds = 6", "rounds = 7"))
    with pytest.raises(RunError, match=r"fedpac-seed0 holds a run with a different config than small needs; move it"):
        list(fill(cells_of(other, tmp_path / "results")))
    told = []
    assert list(fill(cells_of(other, tmp_path / "results"), failed=lambda cell, error: told.append(cell.row))) == []
    assert len(told) == 6
    assert contents(tmp_path / "results") == contents(root)
