"""What differential privacy costs: accuracy against epsilon for FedPAC, FedAvg-FT and Local-only with 100 clients.

python studies/epsilon.py > results/epsilon.csv          Fashion-MNIST, 100 clients with 100 samples, 20 rounds, seed 0
python studies/epsilon.py --draw results/epsilon.csv     docs/img/epsilon.svg from it

Privacy is per client (all its data at once), central: the server is trusted, adds the noise and is not protected
against; no amplification by sampling. Noise is made for the budget, so that FedPAC, which releases four things about a
client in a round where FedAvg releases one, has to add twice as much to each.
"""

import csv
import sys
import tempfile
from pathlib import Path

from fedpac.config import make_config
from fedpac.provenance import provenance
from fedpac.runs.execute import run

ROUNDS, DELTA = 20, 1e-3
BUDGETS = (None, 100.0, 30.0, 10.0, 3.0)
METHODS = {
    "fedpac": ("received", {"summed_centroids": True}),
    "fedavg-ft": ("personal", {}),
    "local": ("personal", {}),
}


def main() -> None:
    about = provenance()
    print(f"# {about['command']}; seed 0; commit {about['commit']}; torch {about['versions']['torch']}")
    print("method,which,budget,epsilon,delta,noise,clip,rounds,percent", flush=True)
    for method, (which, settings) in METHODS.items():
        for budget in BUDGETS if method != "local" else BUDGETS[:1]:
            values = {
                "method": {"name": method, **settings},
                "data": {"dataset": "fashion-mnist", "clients": 100, "samples": 100, "test_samples": 100},
                "run": {"rounds": ROUNDS, "evaluate_every": ROUNDS, "evaluate_absentees": False, "workers": 1},
            }
            if budget is not None:
                values["privacy"] = {"budget": budget, "delta": DELTA, "clip": 0.5, "features": 5.0}
            with tempfile.TemporaryDirectory() as folder:
                summary = run(make_config(values), Path(folder) / "run")
            spent = summary.get("privacy", {})
            percent = 100 * summary[which]["final"]["mean"]
            epsilon = 0.0 if method == "local" else spent.get("epsilon", float("inf"))
            noise = spent.get("noise", 0.0)
            row = (
                method,
                which,
                budget or "",
                f"{epsilon:.3f}",
                DELTA,
                f"{noise:.3f}",
                0.5,
                summary["rounds"],
                f"{percent:.2f}",
            )
            print(*row, sep=",", flush=True)


def draw(path: Path) -> None:
    import matplotlib.pyplot as plt

    from fedpac.report.style import COLOURS, FIRST, style

    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    with style():
        figure, axis = plt.subplots(figsize=(6, 3.6))
        for method, title in (("fedpac", "FedPAC"), ("fedavg-ft", "FedAvg-FT")):
            points = sorted(
                (float(r["epsilon"]), float(r["percent"])) for r in rows if r["method"] == method and r["budget"]
            )
            free = next(float(r["percent"]) for r in rows if r["method"] == method and not r["budget"])
            colour = COLOURS[FIRST.index(method)]
            axis.plot(*zip(*points, strict=True), marker="o", color=colour, label=title)
            axis.axhline(free, color=colour, linestyle=":", linewidth=1)
        local = next(float(r["percent"]) for r in rows if r["method"] == "local")
        axis.axhline(local, color="0.4", label="Local-only (shares nothing: epsilon 0)")
        axis.set(
            xscale="log", xlabel="epsilon per client, delta = 0.001 (dotted: without noise)", ylabel="test accuracy (%)"
        )
        axis.legend(frameon=False, fontsize=8)
        figure.tight_layout()
        figure.savefig("docs/img/epsilon.svg", metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--draw"]:
        draw(Path(sys.argv[2]))
    else:
        main()
