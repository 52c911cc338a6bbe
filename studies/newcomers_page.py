"""Puts results/newcomers.csv into docs/newcomers.md as a table, and draws docs/img/newcomers.svg and .png.

python studies/newcomers_page.py [FOLDER]       another folder for the figure
"""

import csv
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from fedpac.report.style import COLOURS, MARKERS, write_figure

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "newcomers.md"
MARKS = re.compile(r"(<!-- newcomers -->\n).*?(<!-- end -->)", re.DOTALL)
TITLES = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
MODELS = {
    "FedPAC, welcome": "FedPAC's welcome, no training",
    "FedAvg": "FedAvg's global model",
    "FedAvg-FT": "FedAvg's, fine-tuned on its samples",
    "alone": "trained alone",
    "took part": "took part in FedPAC from the start",
}
Rows = list[dict[str, str]]


def read() -> Rows:
    lines = (ROOT / "results" / "newcomers.csv").read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def cells(rows: Rows, dataset: str, model: str) -> dict[int, tuple[float, float]]:
    """Samples -> accuracy and its standard deviation over draws."""
    chosen = [row for row in rows if (row["dataset"], row["model"]) == (dataset, model)]
    chosen.sort(key=lambda row: int(row["samples"]))
    return {int(row["samples"]): (float(row["accuracy_percent"]), float(row["std_over_draws"])) for row in chosen}


def table(rows: Rows) -> str:
    sizes = sorted({int(row["samples"]) for row in rows})
    lines = [f"| | {' | '.join(f'{size} samples' for size in sizes)} |", "|---|" + "---|" * len(sizes)]
    for dataset, title in TITLES.items():
        for model, words in MODELS.items():
            found = cells(rows, dataset, model)
            shown = [f"{found[n][0]:.2f}" + (f" ± {found[n][1]:.2f}" if found[n][1] else "") if n in found else "–"
                     for n in sizes]  # fmt: skip
            if found:
                lines.append(f"| {title}: {words} | {' | '.join(shown)} |")
    return "\n".join(lines)


def figure(rows: Rows) -> Figure:
    present = [dataset for dataset in TITLES if any(row["dataset"] == dataset for row in rows)]
    drawn, axes = plt.subplots(1, len(present), figsize=(5.2 * len(present), 3.8), squeeze=False)
    for axis, dataset in zip(axes[0], present, strict=True):
        for model, colour, marker in zip(MODELS, COLOURS, MARKERS, strict=False):
            found = cells(rows, dataset, model)
            if found:
                means, stds = zip(*found.values(), strict=True)
                axis.errorbar(list(found), means, stds, color=colour, marker=marker, capsize=3, label=MODELS[model])
        sizes = sorted({int(row["samples"]) for row in rows})
        axis.set_xscale("log")
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
        rounds = next(row["rounds"] for row in rows if row["dataset"] == dataset)
        axis.set(title=f"{TITLES[dataset]}, {rounds} rounds", xlabel="labelled samples of the newcomer")
    axes[0][0].set_ylabel("test accuracy (%)")
    axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


def filled(page: str) -> str:
    return MARKS.sub(lambda found: f"{found[1]}\n{table(read())}\n\n{found[2]}", page)


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))
    write_figure(Path(sys.argv[1] if len(sys.argv) > 1 else PAGE.parent / "img") / "newcomers", figure, read())


if __name__ == "__main__":
    main()
