"""The folder of a run: what is in it already, who else writes there, and disks that are full."""

import errno
import multiprocessing
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from fedpac.errors import FedpacError, RunError, RunInUseError
from fedpac.runs import folder as folder_module
from fedpac.runs.execute import resume, run
from fedpac.runs.folder import LOCK, RunStore
from small_run import exact, small

fork = multiprocessing.get_context("fork")


def test_a_folder_with_a_run_is_not_used_again(tmp_path, reference):
    folder = shutil.copytree(reference, tmp_path / "run")
    with pytest.raises(RunError, match="already holds a run"):
        run(small(rounds=2), folder)
    assert exact(folder) == exact(reference)


def test_a_folder_with_something_else_is_not_used(tmp_path):
    (tmp_path / "thesis.tex").write_text("my life's work")
    with pytest.raises(RunError, match="is not empty"):
        run(small(rounds=2), tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "my life's work"


def test_a_start_that_was_killed_before_its_first_round_can_be_repeated(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "clients.csv").write_text("client,na")
    (tmp_path / "run" / ".clients.csv.1.tmp").write_text("client,na")
    run(small(rounds=2), tmp_path / "run")


def test_a_path_through_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match="file, not a folder"):
            run(small(rounds=2), out)


def test_resume_without_a_run(tmp_path):
    with pytest.raises(RunError, match="is not a run folder"):
        resume(tmp_path)


def test_two_processes_on_one_folder(tmp_path):
    started = fork.Event()

    def work() -> None:
        def hold(report):
            started.set()
            time.sleep(60)

        run(small(), tmp_path / "run", callbacks=[hold])

    process = fork.Process(target=work)
    process.start()
    try:
        assert started.wait(60)
        with pytest.raises(RunError, match="another process is writing"):
            resume(tmp_path / "run")
        with pytest.raises(RunError, match="another process is writing"):
            run(small(), tmp_path / "run")
    finally:
        process.kill()
        process.join()
    resume(tmp_path / "run")  # the lock died with its owner, at once


def test_who_comes_second_takes_nothing_away_from_who_came_first(tmp_path, monkeypatch):
    """Both find no folder, and both make it: the lock decides, and the loser leaves the winner's folder alone."""
    folder = tmp_path / "new" / "run"
    ready = fork.Event()

    def first() -> None:
        monkeypatch.undo()
        with RunStore(folder).locked(create=True):
            ready.set()
            time.sleep(60)

    process = fork.Process(target=first)
    exists = type(folder).exists

    def late(path) -> bool:
        """As it was just before the first one made it."""
        found = exists(path)
        if path == folder and not ready.is_set():
            process.start()
            assert ready.wait(60)
        return found

    monkeypatch.setattr(type(folder), "exists", late)
    try:
        with pytest.raises(RunInUseError), RunStore(folder).locked(create=True):
            pass
        assert (folder / LOCK).is_file()
    finally:
        process.kill()
        process.join()


def test_a_start_that_fails_leaves_no_folder(tmp_path):
    with pytest.raises(FedpacError, match="nothing"):
        run(small(data__path=str(tmp_path / "nothing"), data__dataset="own"), tmp_path / "new" / "run")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 160 kB, which only root can have."""
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(place)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_loses_nothing(tmp_path, tiny_disk, reference):
    with pytest.raises(RunError, match="the disk is full: free some space, then continue with 'fedpac resume"):
        run(small(), tiny_disk / "run")
    assert not list((tiny_disk / "run").glob(".*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=10m", str(tiny_disk)], check=True)
    resume(tiny_disk / "run")
    assert exact(tiny_disk / "run") == exact(reference)


def test_no_space_at_all_leaves_nothing(tiny_disk):
    (tiny_disk / "filler").write_bytes(b"x" * 155_000)
    with pytest.raises(RunError, match="the disk is full"):
        run(small(), tiny_disk / "run")
    left = list((tiny_disk / "run").iterdir()) if (tiny_disk / "run").exists() else []
    assert not [p for p in left if p.stat().st_size == 0 and p.name == "config.toml"]


def test_a_read_only_folder(tiny_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(RunError, match="read-only: choose another folder"):
        run(small(), tiny_disk / "run")


def fails_at(name, monkeypatch):
    """The disk is full when the file of that name is written, and nothing can be removed from it."""

    def write(path, data):
        if path.name == name:
            path.with_name(f".{name}.1.tmp").write_bytes(data[:3])
            raise OSError(errno.ENOSPC, "no space")
        path.write_bytes(data)

    def stuck(path, missing_ok=False):
        raise OSError(errno.EIO, "stuck")

    monkeypatch.setattr(folder_module, "write_atomically", write)
    monkeypatch.setattr(Path, "unlink", stuck)


@pytest.mark.parametrize("name", ["clients.csv", "rounds.csv", "config.toml"])
def test_a_start_that_fails_leaves_a_folder_that_can_be_used(tmp_path, name):
    """Even where what it has written cannot be removed; and the advice is to start, not to resume what is not there."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        fails_at(name, monkeypatch)
        with pytest.raises(RunError, match="free some space, then start the run again"):
            run(small(rounds=2), tmp_path / "run")
        with pytest.raises(RunError, match="free some space, then start the run again"):  # it is still full
            run(small(rounds=2), tmp_path / "run")
    assert (tmp_path / "run" / f".{name}.1.tmp").exists()
    run(small(rounds=2), tmp_path / "run")
    assert not (tmp_path / "run" / f".{name}.1.tmp").exists()


@pytest.mark.parametrize("name", [b"data\xff", b"data ", b" data", b"d\na\nt"])
def test_any_folder_can_be_that_of_the_data(tmp_path, name):
    there = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    there.mkdir()
    store = RunStore(tmp_path)
    store.remember_data_dir(there)
    assert store.data_dir() == there


@pytest.mark.parametrize("content", [b"", b"\n", b"a\0b\n"])
def test_a_damaged_note_of_where_the_data_were(tmp_path, content):
    (tmp_path / ".data-dir").write_bytes(content)
    with pytest.raises(RunError, match="--data-dir"):
        RunStore(tmp_path).data_dir()
