"""examples/hospitals from end to end: every command of its README, as it stands there."""

import csv
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from environment import lend, run_in

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"


def commands() -> list[list[str]]:
    (block,) = re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    lines = [line for line in block.splitlines() if line and not line.startswith(("#", "pip "))]
    return [shlex.split(line) for line in lines]


def table(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(file).open()))


def test_every_command_of_the_readme(fedpac, tmp_path):
    for name in ("make_data.py", "predict_rows.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    libraries = lend(tmp_path / "libraries", "numpy", "onnxruntime")
    assert not {"fedpac", "torch", "pandas"} & {path.name for path in libraries.iterdir()}
    shown = ""
    for program, *arguments in commands():
        if program == "fedpac":
            more = ["--engine", "serial", "--no-figures"] if arguments[0] == "run" else []
            code, text, complaint = fedpac(*arguments, *more)
            assert code == 0, complaint
            shown += text
        elif arguments[0] == "predict_rows.py":
            run_in([libraries], *arguments, cwd=tmp_path)
        else:
            subprocess.run([sys.executable, *arguments], check=True, cwd=tmp_path, capture_output=True)

    assert "worst symmetry: not a column at south; counts as missing there" in shown
    assert "scanner: only west knows category 'Prisma'" in shown
    report = Path("comparison/table.md").read_text()
    for site in ("north", "east", "south", "west"):
        assert len(re.findall(rf"\| {site} ", report)) == 2  # once for each method
    assert {"auroc", "ece", "brier"} <= set(re.findall(r"auroc|ece|brier", report))

    torch, onnx = table("with-torch.csv"), table("with-onnx.csv")
    assert list(torch[0]) == ["row", "class", "p(benign)", "p(malignant)"]
    assert len(torch) == len(onnx) == len(table("data/south.csv"))
    assert [row["class"] for row in torch] == [row["class"] for row in onnx]
    for one, other in zip(torch, onnx, strict=True):
        assert float(one["p(malignant)"]) == pytest.approx(float(other["p(malignant)"]), abs=2e-6)
    right = [row["class"] == truth["diagnosis"] for row, truth in zip(onnx, table("data/south.csv"), strict=True)]
    assert sum(right) / len(right) > 0.85
