"""Draws the two pictures of README: python studies/readme_pictures.py [FOLDER], by default docs/img."""

import sys
from pathlib import Path

from fedpac.runs.figures import accuracy_curves
from fedpac.runs.heatmaps import weight_heatmap
from fedpac.runs.reading import read_run

ROOT = Path(__file__).parents[1]


def draw(folder: Path) -> list[Path]:
    fedpac, fedavg = (
        read_run(ROOT / "results" / "fashion-mnist-20" / f"{name}-seed0") for name in ("fedpac", "fedavg")
    )
    written = accuracy_curves([fedpac, fedavg], folder / "fashion-mnist-accuracy")
    return written + weight_heatmap(fedpac, folder / "fashion-mnist-weights")


if __name__ == "__main__":
    print(*draw(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "img"), sep="\n")
