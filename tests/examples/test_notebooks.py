"""The notebooks run, and can be read without running them."""

import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"-?\d+(\.\d*)?(e[+-]?\d+)?")
QUICK = "quick_start"  # in every run of the tests; starting a kernel and torch takes seconds
names = [pytest.param(p, id=p.stem, marks=[] if p.stem == QUICK else [pytest.mark.slow]) for p in NOTEBOOKS]


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def shown(cell: nbformat.NotebookNode) -> list[str]:
    """The words that a cell prints, and the kinds of what it shows."""
    outputs = [o for o in cell.get("outputs", []) if o.get("name") != "stderr"]
    text = " ".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)
    return [*sorted({o.output_type for o in outputs}), *NUMBER.sub("", text).split()]


def test_all_are_there():
    assert [path.stem for path in NOTEBOOKS] == ["hospital_tables", "own_data", "own_method", "quick_start"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_can_be_read_without_running_it(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert len(outputs) >= len(cells) / 2
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert not [part for part in (str(Path.home()), "site-packages", "/tmp/") if part in path.read_text()]


@pytest.mark.parametrize("path", names)
def test_it_runs(path, tmp_path, monkeypatch):
    """From the first cell to the last, in an empty folder. It shows what is committed, up to numbers."""
    shutil.copy(ROOT / "examples" / "hospitals" / "make_data.py", tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    book, committed = read(path), read(path)
    NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    for cell, before in zip(book.cells, committed.cells, strict=True):
        assert shown(cell) == shown(before), cell.source
