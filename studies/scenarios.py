"""Draws docs/img/scenarios.png: who holds what in each scenario. `python studies/scenarios.py`"""

from pathlib import Path

from fedpac.data.scenario import DataConfig, build, describe
from fedpac.runs.figures import bubble_plots

SHOWN: dict[str, dict[str, object]] = {
    "groups, s = 20 %": {"scenario": "groups"},
    "groups, s = 80 %": {"scenario": "groups", "s": 80},
    "imbalanced": {"scenario": "imbalanced"},
    "iid": {"scenario": "iid"},
    "pathological, random": {"scenario": "pathological"},
    "pathological, clustered": {"scenario": "pathological", "allocation": "clustered"},
    "dirichlet, beta = 1.0": {"scenario": "dirichlet", "samples": 600},
    "concept-shift: labels as the clients see them": {"scenario": "concept-shift"},
}

if __name__ == "__main__":
    drawn = {}
    for title, keys in SHOWN.items():
        built = build(DataConfig.model_validate({"dataset": "fashion-mnist", "clients": 20, **keys}), seed=0)
        drawn[title] = (describe(built).numpy(), [client.group for client in built.clients])
    for path in bubble_plots(drawn, Path("docs/img/scenarios"), columns=2):
        print(path)
