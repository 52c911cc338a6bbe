"""How sure is a difference between two methods on the same clients?

    python studies/paired.py > results/paired.csv

For pairs of finished runs with one seed: the mean over clients of the difference in final accuracy, and its standard
error over clients. Both were tested on the same images, so most of what a draw of them changes cancels out; another
draw of training images, or another initialisation, comes on top.
"""

from pathlib import Path

import numpy as np

from fedpac.methods.base import Which
from fedpac.provenance import provenance
from fedpac.runs.read import read_run

RESULTS = Path(__file__).parents[1] / "results"
OTHERS: dict[str, dict[str, Which]] = {
    "fashion-mnist-20": {
        "fedavg": "personal", "ditto": "personal", "pfedhn": "personal",
        "fedpac-fa": "received", "fedpac-cc": "received", "fedpac-none": "received",
    },
    "cifar10-20": {
        "fedavg": "personal", "fed-rod": "received",
        "fedpac-fa": "received", "fedpac-cc": "received", "fedpac-none": "received",
    },
}  # fmt: skip

if __name__ == "__main__":
    origin = provenance()
    print(f"# {origin['command']}; commit {origin['commit']}; numpy {origin['versions']['numpy']}")
    print("setting,other,accuracy of the other,fedpac received - other,standard error over clients")
    for setting, others in OTHERS.items():
        ours = read_run(RESULTS / setting / "fedpac-seed0").accuracy["received"][200]
        for name, which in others.items():
            theirs = read_run(RESULTS / setting / f"{name}-seed0").accuracy[which][200]
            apart = 100 * (ours - theirs)
            error = apart.std(ddof=1) / np.sqrt(len(apart))
            print(f"{setting},{name},{which},{apart.mean():+.2f},{error:.2f}")
