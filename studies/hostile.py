"""What hostile clients do to honest ones, under every aggregation rule: mean accuracy of the honest clients' models.

python studies/hostile.py > results/hostile.csv        Fashion-MNIST, 20 clients with 200 samples, 20 rounds, seed 0

backdoor_percent is the share of honest clients' test images that go to the attacker's class once they bear its mark,
those of that class left out.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

import fedpac
from fedpac.config import make_config
from fedpac.hostile import TARGET, with_square
from fedpac.provenance import provenance
from fedpac.runs.execute import run
from fedpac.runs.read import read_run

ROUNDS = 20
RULES = ("mean", "median", "trimmed-mean", "krum", "clipped")
SHARES = (0.1, 0.3)
PLAN = [  # method, attack, share, rule
    *[("fedpac", "sign-flip", share, rule) for share in (0.0, *SHARES) for rule in RULES],
    *[("fedavg", "sign-flip", share, rule) for share in (0.0, *SHARES) for rule in ("mean", "trimmed-mean", "clipped")],
    *[
        ("fedpac", attack, share, rule)
        for attack in ("scaled", "label-flip", "backdoor")
        for share in SHARES
        for rule in ("mean", "trimmed-mean", "clipped")
    ],
]


def main() -> None:
    about = provenance()
    print(f"# {about['command']}; seed 0; commit {about['commit']}; torch {about['versions']['torch']}")
    print("method,attack,strength,hostile_percent,rule,honest_clients,received_percent,backdoor_percent", flush=True)
    for method, attack, share, rule in PLAN:
        strength = 2.0 if attack == "backdoor" else 10.0
        config = make_config(
            {
                "method": method,
                "data": {"dataset": "fashion-mnist", "clients": 20, "samples": 200, "test_samples": 200},
                "server": {"aggregation": rule, "hostile": max(share, 0.1)},
                "hostile": {"attack": attack if share else "none", "share": share, "strength": strength},
                "run": {"rounds": ROUNDS, "evaluate_every": ROUNDS, "personal_every": 0, "workers": 1},
            }
        )
        honest = sorted(set(range(20)) - config.hostile.who(20, 0))
        with tempfile.TemporaryDirectory() as folder:
            run(config, Path(folder) / "run")
            accuracy = 100 * np.asarray(read_run(Path(folder) / "run").accuracy["received"][ROUNDS])[honest].mean()
            opened = f"{100 * doors_opened(Path(folder) / 'run', honest):.2f}" if attack == "backdoor" else ""
        print(
            method,
            attack,
            strength,
            round(100 * share),
            rule,
            len(honest),
            f"{accuracy:.2f}",
            opened,
            sep=",",
            flush=True,
        )


def doors_opened(folder: Path, honest: list[int]) -> float:
    result = fedpac.load_run(folder)
    shares = []
    for i in honest:
        test = result.scenario.clients[i].test
        keep = test.index[test.labels() != TARGET]
        predicted = torch.from_numpy(result.model(i, "received").predict(with_square(test.pool.x[keep])))
        shares.append(float((predicted == TARGET).float().mean()))
    return float(np.mean(shares))


if __name__ == "__main__":
    main()
