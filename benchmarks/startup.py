"""(f) How long one waits: for `fedpac --help`, and from the command to the end of the first round on digits."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import Figure, Target, machine, progress, ratio, save, table, targets_table


def run(quick: bool = False) -> list[Target]:
    begun = machine()
    fedpac = str(Path(sys.executable).parent / "fedpac")
    times: dict[str, list[float]] = {}
    for _ in range(2 if quick else 7):
        with tempfile.TemporaryDirectory() as folder:
            commands = {
                "python -c pass": [sys.executable, "-c", "pass"],
                "python -c 'import torch'": [sys.executable, "-c", "import torch"],
                "fedpac --help": [fedpac, "--help"],
                "fedpac run, one round on digits": [
                    fedpac, "run", "--dataset", "digits", "--rounds", "1", "--out", f"{folder}/run",
                ],
            }  # fmt: skip
            for name, command in commands.items():
                start = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                times.setdefault(name, []).append(time.perf_counter() - start)
                progress(f"  {name:32s} {times[name][-1]:.3f} s")
    rows = [
        [f"`{name}`", Figure.of(found).text(3), ratio(found, times["python -c 'import torch'"]).text()]
        for name, found in times.items()
    ]
    targets = [Target("`fedpac --help`, seconds", Figure.of(times["fedpac --help"]), 0.5, at_least=False)]
    head = ["command", "seconds", "this / import torch"]
    markdown = f"{table(head, rows)}\n\nWhole processes, one after the other, in turns.\n\n{targets_table(targets)}"
    save("startup", {"seconds": times, "targets": [t.to_json() for t in targets]}, markdown, begun)
    return targets
