"""(d) The combination weights: the rows of benchmarks/solver.py, in a process of their own (it wants one thread)."""

import json
import subprocess
import sys
from typing import Any

from benchmarks.common import ROOT, Figure, Target, machine, save, table, targets_table


def run(quick: bool = False) -> list[Target]:
    begun = machine()
    asked = "1, (20,)" if quick else "3"
    code = f"import json; from benchmarks import solver; print(json.dumps(solver.measure({asked})))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
    rows = json.loads(found.stdout)
    head = list(rows[0])
    markdown = (
        f"{table(head, [[_cell(row[key]) for key in head] for row in rows])}\n\nAll clients' combination weights, in "
        "seconds of one processor; cvxpy solves one problem per client, as the authors' code does."
    )
    targets = [t for row in rows if (row["clients"], row["solver"]) == (1000, "c++") for t in _targets(row)]
    if targets:
        markdown += f"\n\n{targets_table(targets)}"
    save("weights", {"rows": rows, "targets": [t.to_json() for t in targets]}, markdown, begun)
    return targets


def _targets(row: dict[str, Any]) -> list[Target]:
    seconds = Figure(row["seconds"], row["fastest"], row["slowest"])
    residual = Figure.of([row["residual"]])
    return [
        Target("combination weights of 1,000 clients, seconds", seconds, 1.0, at_least=False),
        Target("their largest KKT residual", residual, 1e-10, at_least=False),
    ]


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
