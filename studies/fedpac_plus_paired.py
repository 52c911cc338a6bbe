"""How far is FedPAC+ ahead of FedPAC, at the same round and at FedPAC's last?

    python studies/fedpac_plus_paired.py > results/fedpac-plus-paired.csv

For each run of FedPAC+ under results/, in every tenth round it has: the mean over clients of its received accuracy less
FedPAC's with the same seed, and the standard error of that over clients, who are the same and have the same test data.
"""

from pathlib import Path

import numpy as np

from fedpac.provenance import provenance
from fedpac.runs.read import read_run

RESULTS = Path(__file__).parents[1] / "results"
LAST = 200

if __name__ == "__main__":
    origin = provenance()
    print(f"# {origin['command']}; commit {origin['commit']}; numpy {origin['versions']['numpy']}")
    print("setting,seed,round,fedpac-plus,less fedpac in this round,its standard error,less fedpac in round 200,its")
    for folder in sorted(RESULTS.glob("*/fedpac-plus-seed*")):
        setting, seed = folder.parent.name, folder.name.removeprefix("fedpac-plus-seed")
        plus, plain = (read_run(folder.with_name(f"{name}-seed{seed}")) for name in ("fedpac-plus", "fedpac"))
        ours, theirs = plus.accuracy["received"], plain.accuracy["received"]
        for t in sorted(ours):
            if t % 10 == 0 and t in theirs:
                gaps = [100 * (ours[t] - theirs[other]) for other in (t, LAST)]
                shown = [f"{gap.mean():+.2f},{gap.std(ddof=1) / np.sqrt(len(gap)):.2f}" for gap in gaps]
                print(f"{setting},{seed},{t},{100 * ours[t].mean():.2f},{','.join(shown)}")
