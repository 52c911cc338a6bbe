"""How much of a difference in accuracy is the draw of the clients' test samples?

    python studies/test_draws.py results/fashion-mnist-20/fedpac-seed0 ... > results/test-draws.csv

For each finished run: the accuracy on the drawn test samples, as in the tables; the accuracy on *all* test images, each
client's classes weighted by its shares, which no draw has a part in; and the standard deviation of the former over
draws, from 1,000 new ones. Needs the runs' checkpoints.
"""

import sys
from pathlib import Path

import numpy as np

from fedpac.api import load_run
from fedpac.data.scenario import describe
from fedpac.provenance import provenance

DRAWS = 1000


def right(run: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(client, test image): whether it is classified rightly; the images' classes; (client, class): samples to draw."""
    result = load_run(run)
    pool = result.scenario.clients[0].test.pool
    hits = [result.models[i].predict(pool.x) == pool.y.numpy() for i in range(len(result))]
    return np.array(hits), pool.y.numpy(), describe(result.scenario, "test").numpy()


if __name__ == "__main__":
    origin = provenance()
    print(f"# test_draws.py {' '.join(sys.argv[1:])}; commit {origin['commit']}; torch {origin['versions']['torch']}")
    print("run,drawn,all_images,std_over_draws")
    for name in sys.argv[1:]:
        hits, y, counts = right(Path(name))
        per_class = np.array([hits[:, y == k].mean(axis=1) for k in range(counts.shape[1])]).T
        shares = counts / counts.sum(axis=1, keepdims=True)
        stream = np.random.default_rng(0)
        # without replacement within a client, as the tables' samples are drawn: hypergeometric in each class
        have = np.bincount(y, minlength=counts.shape[1])
        good = np.rint(per_class * have).astype(int)
        drawn = stream.hypergeometric(good, have - good, counts, size=(DRAWS, *counts.shape)).sum(axis=2)
        means = (drawn / counts.sum(axis=1)).mean(axis=1)
        exact = (shares * per_class).sum(axis=1).mean()
        ours = load_run(Path(name)).accuracy
        print(f"{name},{100 * np.mean(ours):.2f},{100 * exact:.2f},{100 * means.std():.2f}")
