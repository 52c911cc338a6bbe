"""Draws the pictures of README and verdict: python studies/readme_pictures.py [FOLDER], by default docs/img."""

import sys
from pathlib import Path

from fedpac.report.figures import accuracy_curves
from fedpac.report.heatmaps import weight_heatmap
from fedpac.report.style import COLOURS, save, style
from fedpac.runs.read import read_run
from fedpac.runs.run_data import RunData

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "results" / "fashion-mnist-20"

SHOWN = (5, 10, 15, 20, 30, 40, 60, 80, 100, 120, 140, 160, 180, 200)  # rounds of the moving picture
STEP, HOLD, TIMES = 0.7, 4.0, 3  # seconds a round, at the last one; then it stands still
LOOK = """
text { font: 14px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328; }
.big { font-size: 18px; font-weight: 600; } .small { font-size: 12px; } .middle { text-anchor: middle; }
.right { text-anchor: end; } .paper { fill: #ffffff; stroke: #d1d9e0; } .grid { stroke: #d1d9e0; }
.alone { stroke: #59636e; stroke-width: 2.5; } .cell { fill: #0b5cad; } .frame { fill: none; stroke: #59636e; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; } .paper { fill: #0d1117; stroke: #3d444d; } .grid { stroke: #3d444d; }
.alone { stroke: #b7bfc8; } .cell { fill: #6cb6ff; } .frame { stroke: #9198a1; }
}"""


def draw(folder: Path) -> list[Path]:
    fedpac, fedavg, local = (read_run(RUNS / f"{name}-seed0") for name in ("fedpac", "fedavg", "local"))
    accuracy, weights, moving = (
        folder / f"fashion-mnist-{name}" for name in ("accuracy.svg", "weights.png", "learning.svg")
    )
    with style():
        save(accuracy_curves([fedpac, fedavg]), accuracy)
        save(weight_heatmap(fedpac), weights, colours=256)
    moving.write_text(learning(fedpac, fedavg, local))
    return [accuracy, weights, moving]


def learning(fedpac: RunData, fedavg: RunData, local: RunData) -> str:
    """Each client's accuracy and its weights for the others, round by round. Without animation: the last round."""
    order = sorted(range(20), key=lambda i: (i % 5, i))  # by group
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 400" role="img">',
        "<title>FedPAC on Fashion-MNIST: every client's accuracy rises above training alone, and each client learns "
        "from its own group</title>",
        f'<style>{LOOK}</style><rect class="paper" x="1" y="1" width="858" height="398" rx="10"/>',
    ]
    for k, t in enumerate(SHOWN):
        means = {run.title: 100 * run.accuracy["received"][t].mean() for run in (fedpac, fedavg)}
        said = f"Fashion-MNIST, round {t}: FedPAC {means['FedPAC']:.1f} %, FedAvg {means['FedAvg']:.1f} %"
        moves = _moves("opacity", [float(j == k) for j in range(len(SHOWN))], jump=True)
        parts.append(f'<text class="big" x="24" y="34" opacity="{int(t == SHOWN[-1])}">{said}{moves}</text>')
    parts += [*_accuracies(fedpac, local, order), *_matrix(fedpac, order), "</svg>\n"]
    return "\n".join(parts)


def _accuracies(fedpac: RunData, local: RunData, order: list[int]) -> list[str]:
    def height(share: float) -> float:
        return round(340 - (share - 0.6) * 670, 1)

    alone = local.accuracy["personal"][max(local.accuracy["personal"])]
    parts = ['<text class="small" x="24" y="56">Test accuracy of each of the 20 clients</text>']
    for percent in (60, 70, 80, 90, 100):
        y = height(percent / 100)
        parts.append(f'<line class="grid" x1="60" x2="470" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="small right" x="54" y="{y + 4}">{percent} %</text>')
    for place, client in enumerate(order):
        x, y = 76 + 18 * place + 10 * (place // 4), height(alone[client])
        parts.append(f'<line class="alone" x1="{x - 7}" x2="{x + 7}" y1="{y}" y2="{y}"/>')
        heights = [height(fedpac.accuracy["received"][t][client]) for t in SHOWN]
        parts.append(
            f'<circle cx="{x}" cy="{heights[-1]}" r="6.5" fill="{COLOURS[client % 5]}">{_moves("cy", heights)}</circle>'
        )
    return [
        *parts,
        '<circle cx="82" cy="374" r="6.5" fill="#D55E00"/><text class="small" x="94" y="378">FedPAC, one colour per '
        'group</text><line class="alone" x1="280" x2="294" y1="374" y2="374"/>'
        '<text class="small" x="300" y="378">the client alone, after 200 rounds</text>',
    ]


def _matrix(fedpac: RunData, order: list[int]) -> list[str]:
    weights = fedpac.peer_weights
    left, top, cell = 520, 70, 14
    parts = ['<text class="small" x="520" y="56">Who learns from whom: weight of each client (column)</text>']
    for row, client in enumerate(order):
        for column, peer in enumerate(order):
            shades = [round(min(1.0, float(weights[t][client, peer]) / 0.4) ** 0.7, 2) for t in SHOWN]
            if any(shades):
                x, y = left + cell * column, top + cell * row
                at = f'x="{x}" y="{y}" width="{cell}" height="{cell}" opacity="{shades[-1]:g}"'
                parts.append(f'<rect class="cell" {at}>{_moves("opacity", shades)}</rect>')
    frames = [f'<rect class="frame" x="{left}" y="{top}" width="280" height="280"/>']
    for group in range(5):
        step = 56 * group
        frames.append(f'<rect class="frame" x="{left + step}" y="{top + step}" width="56" height="56"/>')
        colour = f'fill="{COLOURS[group]}"'
        frames.append(f'<rect x="{left - 8}" y="{top + step + 2}" width="5" height="52" {colour}/>')
        frames.append(f'<rect x="{left + step + 2}" y="{top + 283}" width="52" height="5" {colour}/>')
    note = '<text class="small" x="520" y="378">Boxes: the five groups, which nobody told FedPAC</text>'
    return [*parts, *frames, note]


def _moves(attribute: str, values: list[float], jump: bool = False) -> str:
    """From round to round, then a rest at the last one. What never changes does not move."""
    if len(set(values)) == 1:
        return ""
    total = STEP * (len(values) - 1) + HOLD
    times = [*(STEP * k / total for k in range(len(values))), 1.0]
    steps = ";".join(f"{value:g}" for value in (*values, values[-1]))
    mode = ' calcMode="discrete"' if jump else ""
    return (
        f'<animate attributeName="{attribute}" values="{steps}" keyTimes="{";".join(f"{at:.3g}" for at in times)}" '
        f'dur="{total:g}s" repeatCount="{TIMES}" fill="freeze"{mode}/>'
    )


if __name__ == "__main__":
    print(*draw(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "img"), sep="\n")
