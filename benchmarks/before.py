"""(g) The same rounds on an earlier commit, side by side: nothing gets slower unnoticed.

FEDPAC_BEFORE names the commit; by default, the one before HEAD.
"""

import io
import os
import subprocess
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common import (
    ROOT,
    Contender,
    Figure,
    Target,
    column,
    interleave,
    machine,
    ratio,
    save,
    table,
    targets_table,
)

NOW, BEFORE = "this tree", "earlier commit"
WORKLOADS = (("fashion-mnist", "fedpac"), ("cifar10", "fedpac"), ("fashion-mnist", "fedavg"))
MOST = 1.05  # times the earlier commit's seconds; below it, the difference is noise


def run(quick: bool = False) -> list[Target]:
    begun = machine()
    commit = _git("rev-parse", "--short", os.environ.get("FEDPAC_BEFORE", "HEAD~1")).decode().strip()
    rows, targets, data = [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as tree:
            tree.extractall(folder, filter="data")
        for dataset, method in WORKLOADS:
            workload = f"quick-{dataset}" if quick else dataset
            words = ["benchmarks.ours", workload, method, "--evaluate", "--engine", "auto"]
            with ExitStack() as stack:
                contenders = [
                    Contender(NOW, *words, PYTHONPATH=str(ROOT / "src")),
                    Contender(BEFORE, *words, cwd=Path(folder), PYTHONPATH=str(Path(folder) / "src")),
                ]
                for contender in contenders:
                    stack.enter_context(contender)
                answers = interleave(contenders, 5)
            seconds = {name: column(answers, name) for name in (NOW, BEFORE)}
            relative = ratio(seconds[NOW], seconds[BEFORE])
            rows.append(
                [dataset, method, *(Figure.of(seconds[name]).text() for name in (NOW, BEFORE)), relative.text()]
            )
            targets.append(
                Target(f"{dataset}, {method}: seconds / seconds at {commit}", relative, MOST, at_least=False)
            )
            data[f"{dataset} {method}"] = answers
    head = ["round of", "method", f"{NOW}, s", f"{commit}, s", "ratio"]
    save("before", {**data, "earlier": commit, "targets": [t.to_json() for t in targets]},
         f"{table(head, rows)}\n\n{targets_table(targets)}", begun)  # fmt: skip
    return targets


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout
