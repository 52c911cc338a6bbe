"""(d) The combination weights: the rows of benchmarks/solver.py, in a process of their own (it wants one thread)."""

import json
import subprocess
import sys

from benchmarks.common import ROOT, Target, machine, save, table


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
    save("weights", {"rows": rows}, markdown, begun)
    return []


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
