"""The paper's tables as data, and filling one of our own: interrupted, in parts, by two processes."""

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_table import TABLE, contents, experiment

from fedpac.config import make_config
from fedpac.errors import ConfigError, RunError
from fedpac.runs import reproduce
from fedpac.runs.experiment import find_experiments, shipped
from fedpac.runs.reading import read_run
from fedpac.runs.reproduce import all_cells, cells, fill
from fedpac.runs.results import outcomes
from fedpac.runs.run import fingerprint, run
from fedpac.runs.store import RunStore

# --- the paper's ----------------------------------------------------------------------------------------------------


def test_every_table_and_figure_of_the_paper_is_there():
    assert set(shipped()) == {
        "all-methods", "table1", "ablation", "concept-shift", "global-models", "fedproto", "imbalanced", "pathological",
        "dirichlet", "scarce", "feature-skew", "heterogeneity", "data-size", "local-epochs", "curves", "weights",
        "choices",
    }  # fmt: skip
    papers = {name: sum(len(s.paper) for s in e.settings.values()) for name, e in shipped().items()}
    assert papers["table1"] == 15 * 8
    assert papers["global-models"] == 9 * 8
    assert papers["ablation"] == 4 * 4
    assert papers["concept-shift"] == 8 * 2
    assert papers["dirichlet"] == papers["imbalanced"] == papers["pathological"] == 9 * 2
    assert papers["fedproto"] == 5 * 2
    assert (papers["scarce"], papers["feature-skew"]) == (5, 7)
    assert len(shipped()["all-methods"].settings["fashion-mnist,20"].paper) == 25


def test_fedpac_has_the_same_number_wherever_the_paper_repeats_it():
    quoted = [
        (key, setting.paper[row])
        for experiment in shipped().values()
        for key, setting in experiment.settings.items()
        for row in ("fedpac", "local", "fedavg-ft")
        if row in setting.paper and len(key.split(",")) == 2
    ]
    assert len(quoted) > 30
    for key in {key for key, _ in quoted}:
        assert len({value for k, value in quoted if k == key}) <= 3  # one for each of the three rows


def test_equal_folders_are_equal_runs():
    configs: dict[Path, set[str]] = {}
    for table in shipped().values():
        for cell in cells(table, Path("results"), seeds=2):
            configs.setdefault(cell.folder, set()).add(fingerprint(cell.config))
    assert len(configs) > 600
    assert [folder for folder, prints in configs.items() if len(prints) > 1] == []


def test_the_papers_settings():
    config = shipped()["table1"].config("cifar10,100", "fedpac", seed=2)
    assert config.data.clients == 100
    assert (config.run.participation, config.run.rounds, config.run.seed) == (0.3, 200, 2)
    assert (config.training.lr, config.training.epochs, config.training.batch) == (0.02, 5, 50)
    assert shipped()["ablation"].config("emnist,20", "fedpac-none", 0).method["alignment"] is False
    assert shipped()["scarce"].config("cifar10,1000,scarce", "ditto", 0).data.samples == 50


def test_rows_that_need_no_run_of_their_own():
    rows = [cell.row for cell in cells(shipped()["all-methods"], Path("results"))]
    assert "fedavg-ft" not in rows
    assert "fedem-ft" not in rows
    assert len(rows) == 22  # 22 methods in 25 rows, three of which are by-products


def test_only_picks_settings_by_words_and_rows_by_name():
    table = shipped()["table1"]
    assert {c.setting for c in cells(table, Path(), only="fashion-mnist,20")} == {"fashion-mnist,20"}
    assert {c.setting for c in cells(table, Path(), only="100")} == {k for k in table.settings if k.endswith("100")}
    picked = cells(table, Path(), only="cifar10,20,fedpac,fedavg-ft")
    assert [(c.setting, c.row) for c in picked] == [("cifar10,20", "fedpac"), ("cifar10,20", "fedavg")]
    swept = cells(shipped()["heterogeneity"], Path(), only="cifar10,20,fedpac")
    assert [c.setting for c in swept] == ["cifar10,20"]
    assert len(cells(shipped()["heterogeneity"], Path(), only="cifar10,fedpac")) == 4
    with pytest.raises(ConfigError, match=r"no setting or row 'cifar'\. Did you mean 'cifar10'"):
        cells(table, Path(), only="cifar")
    with pytest.raises(ConfigError, match="no setting of table1 has all of 100, 20"):
        cells(table, Path(), only="20,100")
    with pytest.raises(ConfigError, match=r"no table or figure 'tabel1'\. Did you mean 'table1'"):
        find_experiments("tabel1")


def test_all_of_them_share_runs():
    everything = all_cells(list(shipped().values()), Path("results"))
    assert len({cell.folder for cell in everything}) == len(everything)
    weights = next(c for c in everything if c.setting == "cifar10,20,s80" and c.row == "fedpac")
    assert weights.rounds == 200  # the heat maps need 50 rounds of it, the sweep all
    only_weights = cells(shipped()["weights"], Path("results"))
    assert {cell.rounds for cell in only_weights} == {50}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("paper = { fedpac", "paper = { fedpak"), "no row 'fedpak'. Did you mean 'fedpac'"),
        (('by_product_of = "fedavg"', 'by_product_of = "fedprox"'), "no row 'fedprox'"),
        ((', accuracy = "personal"', ""), "a by-product needs `accuracy`"),
        (("fedpac = {}", "mystery = {}"), "methods.mystery needs a title"),
        (('shows = "table"', 'shows = "pie"'), "shows: Input should be"),
        (('shows = "table"', 'shows = "weights"'), "a figure of weights is of one method, and here are fedpac, "),
        (("x = 20", ""), "a sweep needs `x`"),
        (('title = "A small table"', ""), "title is missing"),
        (('title = "A small table"', 'titel = "A"'), "there is no key 'titel'. Did you mean 'title'?"),
        (("fedavg = {}", "fedavg = { titel = 'A' }"), "methods.fedavg: there is no key 'titel'. Did you mean 'title'?"),
        (("training = { epochs = 1 }", "trainig = {}"), "settings.digits,6: there is no key 'trainig'. Did you mean"),
        (("fedavg = {}", "fedavg = 3"), "methods.fedavg = 3: expected a table such as {}"),
        (("paper = { fedpac = 12.34", 'paper = { fedpac = "12.34"'), "settings.digits,6.paper.fedpac: Input should be"),
        (("paper = { fedpac = 12.34", "paper = { fedpac = 1234"), "less than or equal to 100"),
        (("[methods]", "[methods"), "not valid TOML"),
        (('[settings."digits,6"]', '[settings."../../digits,6"]'), "'../../digits,6' names a folder"),
        (("run = { rounds", "run = { seed = 3, rounds"), "has a seed; how many there are is said by --seeds"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path, change, complaint):
    text = TABLE.replace(*change, 1)
    if change[0] == "x = 20":
        text = text.replace('shows = "table"', 'shows = "sweep"')
    with pytest.raises(ConfigError, match=re.escape(complaint)) as error:
        experiment(tmp_path, text)
    assert "small.toml" in str(error.value)


def test_a_gathering_file_says_from_where_and_what(tmp_path):
    with pytest.raises(ConfigError, match=r"small\.toml: a table that gathers others needs two lists"):
        experiment(tmp_path, 'title = "t"\ngathers = ["other"]\n')


def test_a_wrong_value_names_setting_and_row(tmp_path):
    small = experiment(tmp_path, TABLE.replace("epochs = 1", "epochs = 0"))
    with pytest.raises(ConfigError, match=r"small.toml, setting 'digits,6', row 'fedpac': config: training.epochs = 0"):
        list(fill(cells(small, tmp_path / "results")))


# --- filling a table ------------------------------------------------------------------------------------------------


def test_a_by_product_is_what_its_own_method_gives(filled, tmp_path):
    small, root = filled
    config = small.config("digits,6", "fedavg", 0).model_dump(exclude_none=True)
    run(make_config({**config, "method": "fedavg-ft"}), tmp_path / "own")
    own = read_run(tmp_path / "own")
    row = next(o for o in outcomes(small, "digits,6", root) if o.row == "fedavg-ft")
    assert row.which == own.reported == "personal"
    assert row.runs[0].accuracy["personal"][6].tolist() == own.accuracy["personal"][6].tolist()


def test_what_is_there_is_not_run_again(filled, monkeypatch):
    small, root = filled
    monkeypatch.setattr(reproduce, "advance", lambda *a: pytest.fail("a finished cell was run again"))
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert list(fill(cells(small, root))) == []
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_in_parts_is_as_in_one_go(filled, tmp_path):
    small, root = filled
    wanted = cells(small, tmp_path)
    assert len(list(fill(wanted, rounds=3))) == len(wanted)
    assert {cell.done() for cell in wanted} == {3}
    assert not any(RunStore(cell.folder).finished for cell in wanted)
    assert list(fill(wanted, rounds=2)) == []  # they have come further already
    assert len(list(fill(wanted, rounds=100))) == len(wanted)
    assert contents(tmp_path) == contents(root)


def test_no_minutes_run_nothing(tmp_path):
    small = experiment(tmp_path)
    assert list(fill(cells(small, tmp_path / "results"), minutes=0)) == []
    assert not (tmp_path / "results").exists()


def test_out_of_time_in_the_middle_of_a_cell(filled, tmp_path, monkeypatch):
    small, root = filled
    wanted = cells(small, tmp_path, only="digits,6")
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    assert [c.row for c in fill(wanted, minutes=9 / 60)] == ["fedpac"]  # a look at the clock takes a second
    monkeypatch.undo()
    assert wanted[0].done() == 6
    assert 0 < wanted[1].done() < 6
    assert [c.row for c in fill(wanted)] == ["fedavg", "fedpac-cc"]
    reached = contents(tmp_path)
    assert reached == {name: data for name, data in contents(root).items() if name in reached}


def test_killed_and_started_again(filled, tmp_path):
    """The command itself, killed at several moments; at the end the same files as if nothing had happened."""
    _, root = filled
    (tmp_path / "small.toml").write_text(TABLE)
    command = [sys.executable, "-m", "fedpac.cli", "reproduce", "small.toml", "--out", "results", "--page", "page.md"]
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
    assert "6 of 6 runs are there." in last.stdout
    assert contents(tmp_path / "results") == contents(root)
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items())


def test_a_run_that_was_moved_away_is_not_in_the_way(filled, tmp_path):
    small, root = filled
    shutil.copytree(root, tmp_path / "results")
    folder = tmp_path / "results" / "digits-6"
    (folder / "fedavg-seed0").rename(folder / "fedavg-seed0-old")
    assert {row.row: len(row.runs) for row in outcomes(small, "digits,6", tmp_path / "results")}["fedavg"] == 0


def test_a_table_of_ones_own_leaves_the_papers_page_alone(filled, tmp_path):
    _, root = filled
    (tmp_path / "small.toml").write_text(TABLE)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results.md").write_text("the paper's")
    shutil.copytree(root, tmp_path / "results")
    command = [sys.executable, "-m", "fedpac.cli", "reproduce", "small.toml", "--minutes", "0"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "docs" / "results.md").read_text() == "the paper's"
    assert "A small table" in (tmp_path / "results" / "small.md").read_text()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Another process writes in that folder."""
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print(); time.sleep(60)"
    command = [sys.executable, "-u", "-c", code, folder / ".lock"]
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
    wanted = cells(small, tmp_path / "results", only="digits,6")
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
    with pytest.raises(RunError, match=r"fedpac-seed0 holds a run with another config than small asks for; move it"):
        list(fill(cells(other, tmp_path / "results")))
    told = []
    assert list(fill(cells(other, tmp_path / "results"), failed=lambda cell, error: told.append(cell.row))) == []
    assert len(told) == 6
    assert contents(tmp_path / "results") == contents(root)


# --- the command ----------------------------------------------------------------------------------------------------


def fedpac_reproduce(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedpac.cli", "reproduce", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_cell_that_fails_does_not_keep_the_others_from_running(tmp_path):
    """A rate at which training diverges, in the first setting."""
    broken = TABLE.replace("training = { epochs = 1 }", "training = { epochs = 40, lr = 100, weight_decay = 1 }", 1)
    (tmp_path / "small.toml").write_text(broken)
    shown = fedpac_reproduce(tmp_path, "small.toml")
    assert shown.returncode == 1
    assert "diverged" in shown.stderr
    assert "1 of 6 runs failed" in shown.stderr
    assert "5 of 6 runs are there" in shown.stdout
    page = (tmp_path / "results" / "small.md").read_text()
    assert "`fedpac reproduce small.toml`" in page
    assert "[`results`](.)" in page
    assert (tmp_path / "results" / "digits-6-s80" / "fedpac-seed0" / "summary.json").exists()


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
