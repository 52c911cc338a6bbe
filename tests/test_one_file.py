"""FedPAC in one file is the library's FedPAC: the same bodies, heads, centroids and weights from the same batches."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from fedpac.methods.fedpac import FedPAC
from fedpac.models import section
from helpers import CLASSES, RECIPE, batches_of, run_federation, tiny_data, tiny_task, visit

FILE = Path(__file__).parent.parent / "examples" / "fedpac_in_one_file.py"
SIZES = (7, 12, 5, 9, 30)


@pytest.fixture
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fedpac_in_one_file", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lam", [1.0, 0.3])
def test_three_rounds_are_the_librarys(program: Any, lam: float) -> None:
    """Sites of other sizes, and classes that some of them, or all, do not have."""
    data = tiny_data(sizes=SIZES)
    done = run_federation(FedPAC(lam=lam, head_lr=0.2), rounds=3, data=data)
    task = tiny_task(len(SIZES), 3)
    program.LAM, program.HEAD_LR = lam, 0.2
    program.LR, program.EPOCHS, program.BATCH = RECIPE["lr"], RECIPE["epochs"], RECIPE["batch"]
    program.MOMENTUM, program.WEIGHT_DECAY = RECIPE["momentum"], RECIPE["weight_decay"]

    def batches(i: int, t: int, part: str, n: int, epochs: int) -> list[torch.Tensor]:
        return batches_of(visit(task, data, i, round=t), epochs, part)

    sites = [visit(task, data, i).train_set for i in range(len(SIZES))]
    body, heads, (counts, means), alpha = program.fedpac(
        sites, task.model.body, task.model.head, CLASSES, rounds=3, batches=batches
    )
    ours = section(done.server.weights("w"), "body")
    for name, tensor in body.state_dict().items():
        torch.testing.assert_close(tensor, ours[f"body.{name}"], rtol=1e-5, atol=1e-6)
    for i, head in enumerate(heads):
        for name, tensor in head.state_dict().items():
            expected = done.server.weights(f"head.{i}")[f"head.{name}"]
            torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(means, done.server.weights("centroids")["means"], rtol=1e-5, atol=1e-6)
    assert counts.tolist() == done.server.weights("centroids")["counts"].tolist()
    matrix = np.zeros((len(SIZES), len(SIZES)))
    for i, j, weight in FedPAC().peer_weights(done.server):
        matrix[i, j] = weight
    np.testing.assert_allclose(alpha.numpy(), matrix, atol=1e-5)
    assert 0 < (matrix > 0.01).sum() < matrix.size, "everybody or nobody collaborates: nothing was tested"


def test_it_uses_nothing_of_ours_and_is_short() -> None:
    text = FILE.read_text()
    assert not re.search(r"^\s*(import|from)\s+fedpac", text, re.MULTILINE)
    assert set(re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE)) == {"copy", "torch", "sklearn"}
    assert len(text.splitlines()) <= 230


def test_it_runs_and_finds_the_groups() -> None:
    done = subprocess.run([sys.executable, FILE], capture_output=True, text=True, check=True, timeout=120)
    accuracy, alike = map(float, re.findall(r"([\d.]+) %", done.stdout.splitlines()[-1]))
    assert accuracy > 75
    assert alike > 75
