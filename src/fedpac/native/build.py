"""Builds the native library with the system compiler on first use, and loads it.

The library is kept in a per-user cache under a name that is a hash of all that went into it, so a change of source,
flags or compiler builds a new one and nothing ever needs to be cleaned. What is loaded runs as this user: if others can
write to the cache, the library is built for this process alone, in a folder that only this user can reach.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import grp
import hashlib
import logging
import os
import platform
import pwd
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
FLAGS = (
    "-O3", "-std=c++17", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
    "-fno-predictive-commoning",  # it carries inputs over from step to step in registers that the sums need
)  # fmt: skip
# a source whose name ends so is compiled for that instruction set; the caller must ask the processor first
VARIANTS = {
    "_avx2": ("-mavx2", "-mfma"),
    "_avx512": ("-mavx2", "-mfma", "-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq"),
}

_log = logging.getLogger("fedpac.native")


class BuildError(Exception):
    """The native library cannot be had on this machine."""


def library() -> ctypes.CDLL | None:
    """The native library, built if need be, or None (see `reason`)."""
    return _state()[0]


def available() -> bool:
    """Whether the native library can be used."""
    return library() is not None


def reason() -> str:
    """Why the native library cannot be used; empty if it can."""
    return _state()[1]


@functools.cache
def _state() -> tuple[ctypes.CDLL | None, str]:
    # cached, so a process tries once and complains once
    try:
        if os.environ.get("FEDPAC_NATIVE", "1") == "0":
            raise BuildError("switched off by FEDPAC_NATIVE=0")
        return _load(), ""
    except (BuildError, OSError) as error:
        _log.warning("native kernels are unavailable; falling back to plain torch, which is slower: %s", error)
        return None, str(error)


def cache_folder() -> Path:
    """Where built libraries are kept: $FEDPAC_CACHE, or the user's cache folder."""
    chosen = os.environ.get("FEDPAC_CACHE")
    if chosen:
        return Path(chosen) / "native"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedpac" / "native"


def _compiler() -> list[str]:
    chosen = os.environ.get("CXX")
    if chosen:
        return shlex.split(chosen)
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C++ compiler found (c++, g++ or clang++; or set CXX)")


def _run(command: list[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        raise BuildError(f"cannot run {command[0]!r}: {error}") from error


def _finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate()
    _check(process, output)
    return output


def _check(process: subprocess.Popen[str], output: str) -> None:
    if process.returncode != 0:
        raise BuildError(f"the compiler failed ({process.returncode}): {output.strip()[-2000:]}")


def _flags(source: Path) -> tuple[str, ...]:
    if platform.machine().lower() in ("x86_64", "amd64"):
        for ending, extra in VARIANTS.items():
            if source.stem.endswith(ending):
                return FLAGS + extra
    return FLAGS


def _load() -> ctypes.CDLL:
    folder = cache_folder().resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    danger = _danger(folder)
    if not danger:
        return ctypes.CDLL(str(_build(folder)))
    _log.warning("%s: kernels are rebuilt for this process; set FEDPAC_CACHE to your own folder", danger)
    with tempfile.TemporaryDirectory(prefix="fedpac-") as private:  # once loaded, the file is no longer needed
        if danger := _danger(Path(private).resolve()):
            raise BuildError(danger)
        return ctypes.CDLL(str(_build(Path(private).resolve())))


def _danger(path: Path) -> str:
    """Why another user could put something else in the place of this resolved path; empty if none can."""
    for place in (path, *path.parents):
        found = place.stat()
        if found.st_uid not in (0, os.getuid()):
            return f"{place} belongs to another user"
        others = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _own_group(found.st_gid))
        # in a sticky folder such as /tmp others can add, but neither rename nor replace
        if others and not (place != path and found.st_mode & stat.S_ISVTX):
            return f"{place} is writable by other users"
    return ""


def _own_group(gid: int) -> bool:
    """Whether the group is this user's alone, as on systems that give every user one."""
    try:
        user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


def _build(folder: Path) -> Path:
    """The library in this folder, compiled unless it is there."""
    compiler = _compiler()
    sources = sorted(FOLDER.glob("*.cpp"))
    digest = hashlib.sha256(_finish(_run([*compiler, "--version"])).encode())
    for file in [*sources, *sorted(FOLDER.glob("*.h"))]:
        digest.update(repr((file.name, compiler, _flags(file), platform.machine())).encode() + file.read_bytes())
    target = folder / f"{digest.hexdigest()[:32]}.so"
    if _is_ours(target):
        return target
    with open(target.with_suffix(".lock"), "w") as lock:
        # many workers may start at once: one builds, the others wait. Where locks fail all build, which is safe, too
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_ours(target):
            _compile(compiler, sources, target)
    return target


def _is_ours(library: Path) -> bool:
    """Whether the library is there, and nobody else wrote it."""
    return library.is_file() and not library.is_symlink() and not _danger(library)


def _compile(compiler: list[str], sources: list[Path], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        objects = [f"{scratch}/{source.stem}.o" for source in sources]
        jobs = [
            _run([*compiler, *_flags(source), "-c", str(source), "-o", out])
            for source, out in zip(sources, objects, strict=True)
        ]
        outputs = [job.communicate()[0] for job in jobs]  # all must end before the folder goes
        for job, output in zip(jobs, outputs, strict=True):
            _check(job, output)
        _finish(_run([*compiler, "-shared", *objects, "-o", f"{scratch}/library.so"]))
        os.replace(f"{scratch}/library.so", target)  # atomic: nobody ever loads half a library
