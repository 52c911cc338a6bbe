"""The command as a user types it: in a shell, a pipe, an old terminal, a folder of their own."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

FEDPAC = [str(Path(sys.executable).with_name("fedpac"))]
TINY = [
    "--dataset", "digits", "--clients", "4", "--engine", "serial", "--set", "model=logistic",
    "--set", "training.epochs=1", "--set", "data.samples=10", "--set", "data.test_samples=10",
]  # fmt: skip


def typed(*arguments, command=FEDPAC, cwd=None, **environment):
    variables = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FEDPAC_DATA")}
    done = subprocess.run(
        [*command, *map(str, arguments)], cwd=cwd, capture_output=True, timeout=300, env={**variables, **environment}
    )
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """What `fedpac run --seeds 3` printed, and where."""
    folder = tmp_path_factory.mktemp("seeds")
    return folder, typed("run", "--method", "fedavg", *TINY, "--rounds", 1, "--seeds", 3, "--no-figures", cwd=folder)


@pytest.mark.parametrize("command", [FEDPAC, [sys.executable, "-m", "fedpac"]], ids=["fedpac", "python -m fedpac"])
def test_version_and_help(command):
    assert typed("--version", command=command) == (0, f"fedpac {version('fedpac')}\n", "")
    code, text, _ = typed("--help", command=command)
    assert code == 0
    assert "Usage: fedpac [OPTIONS] COMMAND" in text


def test_completion_is_there():
    code, text, _ = typed("-c", f"{FEDPAC[0]} --show-completion; exit $?", command=["bash"])  # asks its parent's name
    assert code == 0
    assert "_fedpac_completion" in text
    code, text, _ = typed(COMP_WORDS="fedpac re", COMP_CWORD="1", _FEDPAC_COMPLETE="complete_bash")
    assert {"resume", "reproduce"} <= set(text.split())


def test_seeds_are_a_folder_each_and_one_row(seeds):
    folder, (code, text, complaint) = seeds
    assert (code, complaint) == (0, "")
    assert {path.name for path in (folder / "runs").iterdir()} == {f"fedavg-digits-seed{s}" for s in range(3)}
    assert "seeds 0, 1, 2" in text
    assert len(re.findall(r"^ FedAvg +│", text, re.MULTILINE)) == 1


def test_seeds_from_a_given_one_into_a_given_folder(tmp_path):
    code, text, _ = typed(
        "run", *TINY, "--rounds", 1, "--seed", 5, "--seeds", 2, "--out", "mine", "--no-figures", cwd=tmp_path
    )
    assert code == 0
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"seed5", "seed6"}
    assert "seeds 5, 6" in text


def test_one_round_is_no_rounds(seeds):
    _, (_, text, _) = seeds
    assert ", 1 round, seed 0" in text
    assert "1 rounds" not in text


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_comparison_in_a_pipe_is_as_wide_as_it_may_be(seeds, columns):
    folder, _ = seeds
    code, text, _ = typed("compare", "runs", cwd=folder, COLUMNS=str(columns))
    assert code == 0
    assert max(map(len, text.splitlines())) <= columns
    assert re.search(r"FedAvg +│ \d\d\.\d\d ± \d+\.\d\d", text), "a number was cut off"
    assert ("MB" in text.split("Final")[0]) == (columns > 60)


@pytest.mark.parametrize("arguments", [["methods", "fedpac"], ["data"], ["resume", "nowhère→"]], ids=" ".join)
def test_streams_that_cannot_show_every_character(seeds, arguments):
    folder, _ = seeds
    code, text, complaint = typed(*arguments, cwd=folder, PYTHONIOENCODING="ascii")
    assert code == (1 if "nowhère→" in arguments else 0)
    assert "Error" not in text + complaint
    assert (text + complaint).isascii()
    assert "?" not in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_plain_table_is_straight_and_means_the_same(seeds, encoding):
    folder, _ = seeds
    code, text, _ = typed("compare", "runs", cwd=folder, PYTHONIOENCODING=encoding)
    assert code == 0
    table = [line for line in text.splitlines() if line.count("|") > 3]
    assert len({tuple(i for i, character in enumerate(line) if character == "|") for line in table}) == 1
    assert ("+- " in text) == (encoding == "ascii")
    assert " < |" in text  # marks the accuracy that is reported


@pytest.mark.parametrize("checkout", [True, False], ids=["in a checkout", "elsewhere"])
def test_reproduce_says_where_it_writes_and_leaves_the_docs_of_others_alone(tmp_path, checkout):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results.md").write_text("as it was")
    if checkout:
        (tmp_path / "src" / "fedpac" / "experiments").mkdir(parents=True)
    code, text, _ = typed("reproduce", "table1", "--only", "fashion-mnist,20,fedavg", "--minutes", 0, cwd=tmp_path)
    assert code == 0
    runs, page = ("results", "docs/results.md") if checkout else ("fedpac-results", "fedpac-results/results.md")
    assert text.startswith(f"Runs go to {runs}, the results page to {page}.\n")
    assert "Table 1" in (tmp_path / page).read_text()
    assert ((tmp_path / "docs" / "results.md").read_text() == "as it was") != checkout
    assert (tmp_path / "fedpac-results").exists() != checkout


@pytest.mark.parametrize("name", ["model.onnx", "model.pt"])
def test_a_model_is_not_written_under_the_name_of_another_format(seeds, name):
    folder, _ = seeds
    code, _, complaint = typed("export", "runs/fedavg-digits-seed0", "--out", name, cwd=folder)
    assert code == 1
    assert "model.safetensors" in complaint
    assert not (folder / name).exists()
