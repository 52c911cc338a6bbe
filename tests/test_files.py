"""Files that are either whole or not there, and on the disk when they are said to be."""

import errno
import os
from pathlib import Path

import pytest

from fedpac.errors import RunError
from fedpac.files import explained, write_atomically


def test_the_file_is_on_the_disk_before_its_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    """In that order, or a power cut leaves an empty file, or none, under a name that was promised."""
    done = []
    fsync, replace = os.fsync, Path.replace
    kinds = {True: "folder", False: "file"}
    monkeypatch.setattr(os, "fsync", lambda f: (fsync(f), done.append(f"sync {kinds[os.path.isdir(f'/dev/fd/{f}')]}")))
    monkeypatch.setattr(Path, "replace", lambda old, new: (replace(old, new), done.append("rename")))
    write_atomically(tmp_path / "a", b"content")
    assert done == ["sync file", "rename", "sync folder"]
    assert (tmp_path / "a").read_bytes() == b"content"


def test_what_went_wrong_first_is_told(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "no space")

    def stuck(path, missing_ok=False):
        raise OSError(errno.EIO, "stuck")

    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(Path, "unlink", stuck)
    with pytest.raises(RunError, match="the disk is full: free some space, then try again"), explained(tmp_path):
        write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
