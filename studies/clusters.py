"""Which clients share a model in a finished run of HypCluster, and what they have of it.

    python studies/clusters.py results/fashion-mnist-20/hypcluster-seed0 > results/clusters.csv

Needs the run's checkpoint.
"""

import sys
from pathlib import Path
from typing import cast

import numpy as np

from fedpac.api import load_run
from fedpac.engines.site import Site
from fedpac.methods.hypcluster import HypCluster
from fedpac.provenance import provenance
from fedpac.runs.read import read_run

if __name__ == "__main__":
    origin = provenance()
    folder = Path(sys.argv[1])
    run, scores = load_run(folder), read_run(folder)
    method, task = cast(HypCluster, run.method), run.task
    site = Site(task, method, run.scenario.clients)
    received = scores.accuracy["received"][scores.last_round]
    beside = read_run(folder.with_name(folder.name.replace("hypcluster", "fedavg"))).accuracy["received"]
    print(f"# clusters.py {sys.argv[1]}; commit {origin['commit']}; torch {origin['versions']['torch']}")
    print("group,cluster of each client,received,FedAvg received")
    for group in sorted({g for g in scores.groups if g is not None}):
        members = [i for i, g in enumerate(scores.groups) if g == group]
        chosen = []
        for i in members:
            client = site.open(i, task.rounds + 1, {})
            chosen.append(method.choose(client, method.send(run.server, i))[0])
        means = [100 * np.mean(values[members]) for values in (received, beside[scores.last_round])]
        print(f"{group},{' '.join(map(str, chosen))},{means[0]:.2f},{means[1]:.2f}")
