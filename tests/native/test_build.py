"""Building and loading the native library, and doing without it."""

import logging
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from fedpac.native import available, build, conv_pool_act, library, ops, reason

needs_compiler = pytest.mark.skipif(not available(), reason="no native library on this machine")


@pytest.fixture
def fresh() -> Iterator[None]:
    """The library is looked for anew in this test, and again after it."""
    build._state.cache_clear()
    ops._entry.cache_clear()
    yield
    build._state.cache_clear()
    ops._entry.cache_clear()


@pytest.fixture
def quick_compiler(tmp_path: Path) -> str:
    """The system compiler without optimisation, so that a build takes a second."""
    script = tmp_path / "quick-c++"
    script.write_text(f'#!/bin/sh\nexec {" ".join(build._compiler())} "$@" -O0\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


SPOILERS = {
    "switched off": ({"FEDPAC_NATIVE": "0"}, "FEDPAC_NATIVE=0"),
    "compiler missing": ({"CXX": "/no/such/compiler"}, "/no/such/compiler"),
    "compiler fails": ({"CXX": "false"}, "the compiler failed"),
    "no compiler on the path": ({"CXX": "", "PATH": ""}, "no C++ compiler"),
    "cache not a folder": ({"FEDPAC_CACHE": __file__}, "Not a directory"),
}


@pytest.mark.parametrize(("environment", "why"), SPOILERS.values(), ids=SPOILERS.keys())
def test_falls_back_with_one_warning(
    environment: dict[str, str],
    why: str,
    fresh: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("FEDPAC_NATIVE", raising=False)
    monkeypatch.setenv("FEDPAC_CACHE", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # float64: the fallback may sum in another order than torch's default layout does
    x, weight, bias = (torch.randn(size, dtype=torch.float64) for size in ((2, 3, 9, 9), (4, 3, 3, 3), (4,)))
    weight.requires_grad_()
    with caplog.at_level(logging.WARNING):
        assert not available()
        assert library() is None
        assert why in reason()
        ours = [conv_pool_act(x, weight, bias, 1, 0.1) for _ in range(2)]
    theirs = F.max_pool2d(F.leaky_relu(F.conv2d(x, weight, bias, padding=1), 0.1), 2)
    torch.testing.assert_close(ours[1], theirs)
    (mine,) = torch.autograd.grad(ours[1].square().sum(), weight)
    (other,) = torch.autograd.grad(theirs.square().sum(), weight)
    torch.testing.assert_close(mine, other)
    assert len(caplog.records) == 1
    assert "slower" in caplog.text


@needs_compiler
def test_two_processes_build_at_once(tmp_path: Path, quick_compiler: str) -> None:
    code = "from fedpac.native import library, reason; assert library().fedpac_instruction_set, reason()"
    environment = os.environ | {"FEDPAC_CACHE": str(tmp_path), "CXX": quick_compiler, "FEDPAC_NATIVE": "1"}
    processes = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert [file.suffix for file in sorted((tmp_path / "native").iterdir())] == [".lock", ".so"]


@needs_compiler
def test_rebuilds_only_on_change(
    fresh: None, tmp_path: Path, quick_compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPAC_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", quick_compiler)
    source = tmp_path / "source"
    source.mkdir()
    (source / "one.cpp").write_text('extern "C" int one() { return 1; }')
    monkeypatch.setattr(build, "FOLDER", source)
    first = build._build(tmp_path)
    written = first.stat().st_mtime_ns
    assert build._build(tmp_path) == first
    assert first.stat().st_mtime_ns == written
    (source / "one.cpp").write_text('extern "C" int one() { return 2; }')
    second = build._build(tmp_path)
    assert second != first
    assert library() is not None
    assert library().one() == 2  # type: ignore[union-attr]


def test_import_neither_compiles_nor_loads_torch(tmp_path: Path) -> None:
    code = (
        "import sys, fedpac.native as n; assert 'torch' not in sys.modules and not n.build._state.cache_info().misses"
    )
    environment = os.environ | {"FEDPAC_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def cache_with_a_plant(fresh: None, tmp_path: Path, quick_compiler: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which another library has the place and the name of the one that is looked for: one() gives 66."""
    cache, source = tmp_path / "cache", tmp_path / "source"
    for folder in (cache, cache / "native", source):
        folder.mkdir(mode=0o700)
    monkeypatch.setenv("FEDPAC_CACHE", str(cache))
    monkeypatch.setenv("CXX", quick_compiler)
    monkeypatch.delenv("FEDPAC_NATIVE", raising=False)
    monkeypatch.setattr(build, "FOLDER", source)
    (source / "one.cpp").write_text('extern "C" int one() { return 1; }')
    target = build._build(cache / "native")
    (tmp_path / "planted.cpp").write_text('extern "C" int one() { return 66; }')
    build._compile(build._compiler(), [tmp_path / "planted.cpp"], target)
    if os.getuid() == 0:
        os.chown(cache / "native", -1, 12345)  # a group that is not this user's own
    return cache


@needs_compiler
def test_the_plant_would_be_loaded(cache_with_a_plant: Path) -> None:
    loaded = library()
    assert loaded is not None
    assert loaded.one() == 66  # nobody but this user could have put it there


def first_library(cache: Path) -> Path:
    return next((cache / "native").glob("*.so"))


def give_away(path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, 12345, -1)


EXPOSED: dict[str, Callable[[Path], None]] = {
    "all may write": lambda cache: (cache / "native").chmod(0o777),
    "a group may write": lambda cache: (cache / "native").chmod(0o770),
    "all may write above": lambda cache: cache.chmod(0o777),
    "sticky, but open": lambda cache: (cache / "native").chmod(0o1777),
    "another's folder": lambda cache: give_away(cache / "native"),
    "a file that all may write": lambda cache: first_library(cache).chmod(0o666),
    "another's file": lambda cache: give_away(first_library(cache)),
}


@needs_compiler
@pytest.mark.parametrize("expose", EXPOSED.values(), ids=EXPOSED)
def test_a_library_that_others_could_have_put_there_is_not_loaded(
    expose: Callable[[Path], None], cache_with_a_plant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() != 0 and expose is EXPOSED["a group may write"]:
        pytest.skip("the group may be this user's own")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    expose(cache_with_a_plant)
    loaded = library()
    assert loaded is not None, reason()
    assert loaded.one() == 1
    assert not list(elsewhere.iterdir())  # nothing is left behind


@needs_compiler
def test_without_any_safe_place_there_are_no_kernels(
    cache_with_a_plant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybodys = tmp_path / "everybody's"
    everybodys.mkdir()
    for folder in (everybodys, cache_with_a_plant):
        folder.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(everybodys))
    assert library() is None
    assert "is writable by other users" in reason()
