"""Draws the two pictures of README: python studies/readme_pictures.py [FOLDER], by default docs/img."""

import sys
from pathlib import Path

from fedpac.report.figures import accuracy_curves
from fedpac.report.heatmaps import weight_heatmap
from fedpac.report.style import save, style
from fedpac.runs.read import read_run

ROOT = Path(__file__).parents[1]


def draw(folder: Path) -> list[Path]:
    fedpac, fedavg = (
        read_run(ROOT / "results" / "fashion-mnist-20" / f"{name}-seed0") for name in ("fedpac", "fedavg")
    )
    accuracy, weights = folder / "fashion-mnist-accuracy.svg", folder / "fashion-mnist-weights.png"
    with style():
        save(accuracy_curves([fedpac, fedavg]), accuracy)
        save(weight_heatmap(fedpac), weights, colours=256)
    return [accuracy, weights]


if __name__ == "__main__":
    print(*draw(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "img"), sep="\n")
