"""What compression saves and what it costs: bytes and accuracy of FedPAC and FedAvg after a few rounds.

python studies/compression.py [ROUNDS] > results/compression.csv        Fashion-MNIST, 20 clients, seed 0
"""

import sys
import tempfile
from pathlib import Path

from fedpac.config import make_config
from fedpac.provenance import provenance
from fedpac.runs.execute import run
from fedpac.runs.read import read_run

WIRES: dict[str, dict[str, object]] = {
    "none": {},
    "float16": {"compression": "float16"},
    "top-k 10 %": {"compression": "top-k", "keep": 0.1},
    "top-k 1 %": {"compression": "top-k", "keep": 0.01},
}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    about = provenance()
    print(f"# {about['command']}; seed 0; commit {about['commit']}; torch {about['versions']['torch']}")
    print("method,wire,rounds,received_percent,megabytes_up,megabytes_down", flush=True)
    for method in ("fedpac", "fedavg"):
        for name, wire in WIRES.items():
            values = {
                "method": method,
                "data": {"dataset": "fashion-mnist"},
                "wire": wire,
                "run": {"rounds": rounds, "evaluate_every": rounds, "evaluate_absentees": False},
            }
            with tempfile.TemporaryDirectory() as folder:
                run(make_config(values), Path(folder) / "run")
                done = read_run(Path(folder) / "run")
            received = 100 * done.accuracy["received"][rounds].mean()
            up, down = done.bytes_up / 1e6, done.bytes_down / 1e6
            print(f"{method},{name},{rounds},{received:.2f},{up:.1f},{down:.1f}", flush=True)


if __name__ == "__main__":
    main()
