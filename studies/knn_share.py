"""How much of kNN-Per's accuracy is the choice of lam, the neighbours' share?

    python studies/knn_share.py results/fashion-mnist-20/knn-per-seed0 > results/knn-share.csv

The mean accuracy over clients of the run's last received models with the lam that every client has chosen, and with the
same lam for all. Needs the run's checkpoint.
"""

import sys
from pathlib import Path
from typing import cast

import numpy as np

from fedpac.api import load_run
from fedpac.methods.knn_per import WithNeighbours
from fedpac.provenance import provenance
from fedpac.threads import one_thread
from fedpac.training import evaluate

SHARES = (0.0, 0.5, 0.6, 0.7, 0.8, 1.0)

if __name__ == "__main__":
    origin = provenance()
    run = load_run(Path(sys.argv[1]))
    scores: dict[str, list[float]] = {}
    chosen = []
    with one_thread():
        for i, client in enumerate(run.scenario.clients):
            model = cast(WithNeighbours, run.model(i, "received").module)
            chosen.append(model.lam)
            for name, share in {"chosen": model.lam, **{f"{share:g}": share for share in SHARES}}.items():
                model.lam = share
                scores.setdefault(name, []).append(evaluate(model, *client.test.tensors())[0])
    counts = ", ".join(f"{share:g} by {chosen.count(share)}" for share in sorted(set(chosen)))
    print(f"# knn_share.py {sys.argv[1]}; commit {origin['commit']}; torch {origin['versions']['torch']}")
    print(f"# chosen: {counts}")
    print("lam,received")
    for name, values in scores.items():
        print(f"{name},{100 * np.mean(values):.2f}")
