"""How much of a fine-tuned model's accuracy is the learning rate of the fine-tuning?

    python studies/fine_tuning.py results/cifar10-20/fedbabu-seed0 ... > results/fine-tuning.csv

For each finished run of FedAvg-FT or FedBABU: the mean accuracy over clients after fine-tuning its last global model
once more, at the rate of the run and at parts of it. Needs the runs' checkpoints.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedpac.api import load_run
from fedpac.provenance import provenance
from fedpac.training import evaluate

PARTS = (1, 2, 4, 8)

if __name__ == "__main__":
    origin = provenance()
    print(f"# fine_tuning.py {' '.join(sys.argv[1:])}; commit {origin['commit']}; torch {origin['versions']['torch']}")
    print("run,rate,personal")
    for name in sys.argv[1:]:
        run = load_run(Path(name))
        for part in PARTS:
            rate = run.task.recipe.lr / part
            tuned = replace(run, method=run.method.model_copy(update={"lr": rate}))
            models = [tuned.model(i, "personal").module for i in range(len(run))]
            tests = [client.test.tensors() for client in run.scenario.clients]
            scores = [evaluate(model, *test)[0] for model, test in zip(models, tests, strict=True)]
            print(f"{name},{rate:g},{100 * np.mean(scores):.2f}", flush=True)
