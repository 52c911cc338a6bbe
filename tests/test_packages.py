"""The packages that are built: complete, and all that a new environment needs to run the demo."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOT_SOURCE = shutil.ignore_patterns(".git", ".venv*", "*.egg-info", "__pycache__", ".*_cache", "demo-runs")


def run(*command, cwd, **environment):
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env={**variables, **environment}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The folder of an sdist and of the wheel that was built from it."""
    source = shutil.copytree(ROOT, tmp_path_factory.mktemp("source") / "fedpac", ignore=NOT_SOURCE)
    built = source.parent / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, cwd=source)
    return built


def test_the_sdist_holds_what_tests_docs_and_demo_need(packages):
    (sdist,) = packages.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {str(Path(*Path(member.name).parts[1:])) for member in archive if member.isfile()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not in a checkout: there is nothing to compare with")
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    assert {name for name in tracked - held if not name.startswith((".ci/", ".git"))} == set()
    assert not [name for name in held if name.endswith((".so", ".pyc", "checkpoint.safetensors"))]


@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
def test_the_demo_runs_in_a_new_environment(packages, tmp_path, kind):
    """Outside the tree. What fedpac needs is lent by this environment, since torch takes minutes to install."""
    (package,) = packages.glob(f"*.{kind}")
    here = Path(sysconfig.get_path("purelib"))
    if kind == "tar.gz":
        offline = ["--no-deps", "--no-index", "--no-build-isolation"]
        run(sys.executable, "-m", "pip", "wheel", *offline, package, cwd=tmp_path)
        (package,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", package, cwd=tmp_path)
    (inside,) = (tmp_path / "env" / "lib").glob("*/site-packages")
    (inside / "lent.pth").write_text(f"{here}\n")  # after all that is its own

    where = run(python, "-c", "import fedpac; print(fedpac.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)
    shown = run(python.with_name("fedpac"), "demo", "--rounds", "2", "--seeds", "1", "--workers", "1", cwd=tmp_path)
    assert "One model for all gets" in shown
    assert (tmp_path / "demo-runs" / "report.html").exists()
    assert "table1" in run(python.with_name("fedpac"), "reproduce", cwd=tmp_path)
    if kind == "whl":
        follow_the_tutorial(python, tmp_path)


def follow_the_tutorial(python: Path, folder: Path) -> None:
    """Every command and program of the page, in order. What begins with a prompt is how to install."""
    blocks = re.findall(r"```(sh|python)\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.DOTALL)
    assert len(blocks) == 6
    for kind, text in blocks:
        if kind == "python":
            run(python, "-c", text, cwd=folder)
        else:
            run("bash", "-ec", text, cwd=folder, PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    assert (folder / "comparison" / "table.md").exists()
