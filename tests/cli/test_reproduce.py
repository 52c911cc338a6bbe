"""fedpac reproduce, as a user calls it."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedpac.tables.spec import shipped
from small_table import TABLE, contents, experiment


def fedpac_reproduce(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedpac", "reproduce", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_cell_that_fails_does_not_keep_the_others_from_running(tmp_path):
    """A rate at which training diverges, in the first setting."""
    broken = TABLE.replace("training = { epochs = 1 }", "training = { epochs = 40, lr = 100, weight_decay = 1 }", 1)
    (tmp_path / "small.toml").write_text(broken)
    shown = fedpac_reproduce(tmp_path, "small.toml")
    assert shown.returncode == 1
    assert "diverged" in shown.stderr
    assert "1 of 6 runs failed" in shown.stderr
    assert "5 of 6 runs are complete" in shown.stdout
    page = (tmp_path / "fedpac-results" / "small.md").read_text()
    assert "`fedpac reproduce small.toml" in page
    assert "[`fedpac-results`](.)" in page
    assert (tmp_path / "fedpac-results" / "digits-6-s80" / "fedpac-seed0" / "summary.json").exists()


def test_runs_elsewhere_have_their_page_beside_them(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results.md").write_text("the page of the other runs")
    shown = fedpac_reproduce(tmp_path, "table1", "--minutes", "0", "--out", "other")
    assert shown.returncode == 0, shown.stderr
    assert (tmp_path / "docs" / "results.md").read_text() == "the page of the other runs"
    assert (tmp_path / "other" / "results.md").read_text().startswith("# Results")


def test_the_command_lists_and_refuses(tmp_path):
    listed = fedpac_reproduce(tmp_path)
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in shipped())
    wrong = fedpac_reproduce(tmp_path, "table9")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "no table or figure 'table9'. Did you mean 'table1'?" in wrong.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_word_that_no_table_knows_is_told_with_those_of_all(tmp_path):
    wrong = fedpac_reproduce(tmp_path, "all", "--only", "fashion-mnits,20")
    assert wrong.returncode == 1
    assert "no setting or row 'fashion-mnits'. Did you mean 'fashion-mnist'?" in wrong.stderr


def test_a_page_that_is_a_folder_is_refused_before_anything_is_run(tmp_path):
    experiment(tmp_path)
    (tmp_path / "pages").mkdir()
    wrong = fedpac_reproduce(tmp_path, "small.toml", "--page", "pages")
    assert wrong.returncode == 1
    assert "--page pages is a folder" in wrong.stderr
    assert not (tmp_path / "results").exists()


def test_killed_and_started_again(filled, tmp_path):
    """The command itself, killed at several moments; at the end the same files as if nothing had happened."""
    _, root = filled
    (tmp_path / "small.toml").write_text(TABLE)
    command = [sys.executable, "-m", "fedpac", "reproduce", "small.toml", "--out", "results", "--page", "page.md"]
    killed = 0
    for pause in (0.1, 0.5, 1.0):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        began = time.monotonic()
        while process.poll() is None and not list(tmp_path.glob("results/*/*/rounds.csv")):
            assert time.monotonic() - began < 60
            time.sleep(0.01)
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed
    finished = {p: p.stat().st_mtime_ns for p in tmp_path.glob("results/*/*/summary.json")}
    last = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert last.returncode == 0, last.stderr
    assert "6 of 6 runs are complete." in last.stdout
    assert contents(tmp_path / "results") == contents(root)
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items())


def test_a_table_of_ones_own_leaves_the_papers_page_alone(filled, tmp_path):
    _, root = filled
    (tmp_path / "small.toml").write_text(TABLE)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results.md").write_text("the paper's")
    shutil.copytree(root, tmp_path / "fedpac-results")
    command = [sys.executable, "-m", "fedpac", "reproduce", "small.toml", "--minutes", "0"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "docs" / "results.md").read_text() == "the paper's"
    assert "A small table" in (tmp_path / "fedpac-results" / "small.md").read_text()


ROOT = Path(__file__).parents[2]
COUNTING = """
import collections, json, sys
opened, validated = collections.Counter(), collections.Counter()

def see(event, arguments):
    if event == "open" and "/seen/results/" in str(arguments[0]):
        opened[str(arguments[0])] += 1

sys.addaudithook(see)
import fedpac.config
from fedpac.cli import main

def counted(*arguments, original=fedpac.config.make_config):
    validated["configs"] += 1
    return original(*arguments)

fedpac.config.make_config = counted
try:
    main(sys.argv[2:])
except SystemExit as end:
    assert end.code == 0
with open(sys.argv[1], "w") as file:
    json.dump({"opened": opened, **validated, "matplotlib": "matplotlib" in sys.modules}, file)
"""


@pytest.mark.parametrize("command", [[], ["all", "--minutes", "0", "--page", "docs/results.md"]])
def test_with_nothing_to_do_each_run_is_read_once_and_nothing_is_written(tmp_path, command):
    """All committed results, the page and its figures, as they are."""
    seen = tmp_path / "seen"
    (seen / "results").mkdir(parents=True)
    for folder in (ROOT / "results").iterdir():
        (seen / "results" / folder.name).symlink_to(folder)
    shutil.copytree(ROOT / "docs" / "img" / "results", seen / "docs" / "img" / "results")
    shutil.copy(ROOT / "docs" / "results.md", seen / "docs")
    before = {path: path.lstat().st_mtime_ns for path in seen.rglob("*")}
    arguments = [tmp_path / "counts.json", "reproduce", *command, "--out", seen / "results"]
    subprocess.run([sys.executable, "-c", COUNTING, *map(str, arguments)], cwd=seen, check=True, timeout=300)
    counts = json.loads((tmp_path / "counts.json").read_text())
    of_runs = {Path(file): times for file, times in counts["opened"].items() if Path(file).parent.parent.name != "seen"}
    runs = {path.parent for path in (seen / "results").glob("*/*/config.toml")}
    if not command:  # what there is of seed 0
        runs = {run for run in runs if run.name.endswith("-seed0")}
    assert len(runs) > 40
    for name in ("config.toml", "clients.csv", "metrics.csv", "rounds.csv", "environment.json"):
        assert {file.parent for file in of_runs if file.name == name} == runs
    assert set(of_runs.values()) == {1}
    assert counts["configs"] < 10 * len(runs)  # of the folders, and of the cells of each table that shares them
    assert not counts["matplotlib"]
    assert {path: path.lstat().st_mtime_ns for path in seen.rglob("*")} == before
