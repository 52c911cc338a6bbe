"""Reading a folder imports no code that the user did not name in this call, whatever the folder's config says."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedpac
from fedpac.errors import ConfigError, RunError
from fedpac.runs.read import read_run
from small_run import tiny

FEDPAC = [sys.executable, "-m", "fedpac"]
MODULE = """
from pathlib import Path
Path("ran").write_text("the module was imported")
from fedpac import FedAvg

class Mine(FedAvg):
    name = "mine"
    title = "My method"
    reported = "personal"
"""
ARE_YOU_SURE = "'planted:Mine', which is not part of fedpac"


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A finished run, and one that is not, of a method that came along with them."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "planted.py").write_text(MODULE)
    made = f"import sys; sys.path[:0] = {sys.path!r}; from small_run import tiny; tiny('run', method='planted:Mine')"
    subprocess.run([sys.executable, "-c", made], cwd=folder, check=True)
    shutil.copytree(folder / "run", folder / "begun")
    (folder / "begun" / "summary.json").unlink()
    np.savez(folder / "x.npz", x=np.zeros((2, 28, 28), dtype=np.uint8))
    (folder / "ran").unlink()
    return folder


@pytest.fixture
def here(stranger, tmp_path, monkeypatch):
    """A copy of it to stand in."""
    shutil.copytree(stranger, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*arguments):
    return subprocess.run([*FEDPAC, *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "arguments",
    [["compare", "run"], ["compare", "run", "begun", "--csv"], ["compare", ".", "--out", "out"], ["resume", "run"]],
    ids=" ".join,
)
def test_looking_at_a_run_needs_no_code(here, arguments):
    done = command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "My method" in done.stdout or arguments[0] == "resume"
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    "arguments",
    [["resume", "begun"], ["predict", "run", "x.npz"], ["export", "run", "--out", "m.safetensors"]],
    ids=" ".join,
)
def test_what_needs_the_code_asks_first(here, arguments):
    done = command(*arguments)
    assert done.returncode == 1
    assert ARE_YOU_SURE in done.stderr
    assert "--method planted:Mine" in done.stderr
    other = command(*arguments, "--method", "fedavg")
    assert other.returncode == 1
    assert "not 'fedavg'" in other.stderr
    assert not (here / "ran").exists()
    for consent in (["--method", "planted:Mine"], ["--trust"]):
        done = command(*arguments, *consent)
        assert (done.returncode, done.stderr) == (0, "")
        assert (here / "ran").exists()
        shutil.rmtree(here / "begun")
        shutil.copytree(here / "run", here / "begun")
        (here / "begun" / "summary.json").unlink()


def test_a_table_reads_no_stranger_s_code(here):
    """A folder of results may hold a run that only looks like the table's."""
    (here / "table.toml").write_text(
        'title = "T"\n[methods]\nfedavg = {}\n[settings."digits,4"]\ntitle = "D"\ndata = { dataset = "digits" }\n'
    )
    shutil.copytree(here / "run", here / "results" / "digits-4" / "fedavg-seed0")
    done = command("reproduce", "table.toml", "--out", "results", "--minutes", "0")
    assert done.returncode == 1
    assert "holds a run with a different config" in done.stderr
    assert not (here / "ran").exists()


def test_python_programs_are_asked_too(here, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])
    run = read_run(Path("run"))
    assert (run.title, run.reported, run.settings["method.name"]) == ("My method", "personal", "planted:Mine")
    for call in (fedpac.load_run, fedpac.resume):
        with pytest.raises(RunError, match=ARE_YOU_SURE):
            call("begun")
    assert not (here / "ran").exists()
    assert fedpac.load_run("begun", method="planted:Mine").method.title == "My method"
    assert (here / "ran").exists()


def test_a_run_from_before_titles_were_recorded(here):
    import json

    environment = here / "run" / "environment.json"
    environment.write_text(json.dumps({k: v for k, v in json.loads(environment.read_text()).items() if k != "method"}))
    assert read_run(Path("run")).title == "My method"  # from the summary
    (here / "run" / "summary.json").unlink()
    run = read_run(Path("run"))
    assert (run.title, run.reported) == ("planted:Mine", "received")


def test_a_module_that_leaves_does_not_end_the_command(tmp_path, monkeypatch):
    (tmp_path / "leaving.py").write_text("raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    done = command("run", "--method", "leaving:Mine")
    assert done.returncode == 1
    assert "SystemExit" in done.stderr
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ConfigError, match="SystemExit"):
        fedpac.find_method("leaving:Mine")


def test_ours_need_no_consent(tmp_path):
    tiny(tmp_path / "run")
    assert fedpac.load_run(tmp_path / "run").method.name == "fedavg"
    assert fedpac.load_run(tmp_path / "run", method="fedavg").method.name == "fedavg"
