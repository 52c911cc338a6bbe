"""What differential privacy costs: accuracy against epsilon for FedPAC, FedAvg-FT and Local-only with 100 clients.

python -m studies.epsilon results/epsilon.csv [ROWS]     Fashion-MNIST, 100 clients with 100 samples, 20 rounds, seed 0
python -m studies.epsilon --draw results/epsilon.csv     docs/img/epsilon.svg from it

Privacy is per client (all its data at once), central: the server is trusted, adds the noise and is not protected
against; no amplification by sampling. Noise is made for the budget. FedPAC's clients keep their heads (two releases a
round: body and centroids, both averages); "fedpac combined" is the paper's FedPAC, whose heads and statistics are
released one by one.
"""

import csv
import sys
import tempfile
from pathlib import Path

from studies.rows import fill

from fedpac.config import make_config
from fedpac.runs.execute import run

ROUNDS, DELTA = 20, 1e-3
CLIP, FEATURES = 0.25, 3.5  # the usual length of a change of FedPAC's body, and of mean features
BUDGETS = ("100", "30", "10", "3")
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "fedpac": ("received", {"name": "fedpac", "summed_centroids": True, "collaboration": False}),
    "fedavg-ft": ("personal", {"name": "fedavg-ft"}),
    "local": ("personal", {"name": "local"}),
    "fedpac combined": ("received", {"name": "fedpac", "summed_centroids": True}),
}
PLAN = [
    *[(method, "") for method in METHODS],
    *[(method, budget) for budget in BUDGETS for method in ("fedpac", "fedavg-ft")],
    ("fedpac combined", "100"),
]


def measure(cell: tuple[str, str]) -> tuple[object, ...]:
    method, budget = cell
    which, settings = METHODS[method]
    values: dict[str, object] = {
        "method": settings,
        "data": {"dataset": "fashion-mnist", "clients": 100, "samples": 100, "test_samples": 100},
        "run": {"rounds": ROUNDS, "evaluate_every": ROUNDS, "evaluate_absentees": False, "workers": 1},
    }
    if budget:
        values["privacy"] = {"budget": float(budget), "delta": DELTA, "clip": CLIP, "features": FEATURES}
    with tempfile.TemporaryDirectory() as folder:
        summary = run(make_config(values), Path(folder) / "run")
    spent = summary.get("privacy", {})
    percents = [f"{100 * summary[kind]['final']['mean']:.2f}" for kind in (which, "received", "personal")]
    epsilon = 0.0 if method == "local" else spent.get("epsilon", float("inf"))
    return which, epsilon, f"{DELTA:g}", spent.get("noise", 0.0), CLIP, summary["rounds"], *percents


def draw(path: Path) -> None:
    import matplotlib.pyplot as plt

    from fedpac.report.style import COLOURS, FIRST, style

    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    with style():
        figure, axis = plt.subplots(figsize=(6, 3.6))
        for method, title in (("fedpac", "FedPAC, heads at home"), ("fedavg-ft", "FedAvg-FT")):
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
        axis.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.06))
        figure.tight_layout()
        figure.savefig("docs/img/epsilon.svg", metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1] == "--draw":
        draw(Path(sys.argv[2]))
    else:
        columns = [
            "method",
            "budget",
            "which",
            "epsilon",
            "delta",
            "noise",
            "clip",
            "rounds",
            "percent",
            "received",
            "personal",
        ]
        fill(Path(sys.argv[1]), columns, PLAN, measure, int(sys.argv[2]) if len(sys.argv) > 2 else len(PLAN))
