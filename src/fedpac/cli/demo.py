"""fedpac demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import TRAIN, Workers, app, examples, out
from fedpac.cli.common import carry_out
from fedpac.errors import RunError

if TYPE_CHECKING:
    from fedpac.methods.base import Which
    from fedpac.report.web.gains import Gains
    from fedpac.report.web.settings import Experiment
    from fedpac.runs.run_data import RunData

METHODS = ("fedpac", "fedavg", "local")
REPORT = "report.html"
COLOURS = {"P": "dark_orange", "T": "green", "L": "magenta", "A": "blue"}


@app.command(rich_help_panel=TRAIN, epilog=examples("fedpac demo --rounds 10 --seeds 1"))
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Output folder. Replaced if it exists.")] = Path("demo-runs"),
    rounds: Annotated[int, typer.Option(help="Communication rounds of each run.", min=1)] = 20,
    seeds: Annotated[int, typer.Option(help="Runs of each method.", min=1, max=99)] = 3,
    workers: Workers = None,
) -> None:
    """Compare FedPAC, FedAvg and local training on 20 sites that label handwritten digits in five different ways."""
    import shutil

    from fedpac.config import make_config
    from fedpac.report.web.page import write_report
    from fedpac.runs.read import read_runs

    if folder.exists():
        strangers = [p.name for p in folder.iterdir()] if folder.is_dir() else [folder.name]
        ours = {f"{name}-seed{seed}" for name in METHODS for seed in range(99)} | {REPORT}
        if strangers := sorted(set(strangers) - ours):
            raise RunError(
                f"{folder} holds other files ({strangers[0]}) and was not touched: choose another folder with --out"
            )
        shutil.rmtree(folder)
    made = []
    for seed in range(seeds):
        for name in METHODS:
            values = {
                "method": name,
                "data": {"dataset": "digits", "scenario": "concept-shift"},
                "run": {"rounds": rounds, "seed": seed, "evaluate_every": max(1, rounds // 10), "workers": workers},
            }
            made.append(folder / f"{name}-seed{seed}")
            label = f"run {len(made)} of {seeds * len(METHODS)}"
            carry_out(make_config(values), made[-1], None, result=False, figures=False, passing=label)
    runs = read_runs(made)
    write_report(runs, folder / REPORT)
    show_outcome(runs, folder / REPORT)


def show_outcome(runs: list[RunData], report: Path) -> None:
    """One table, one curve, one sentence: they fit a terminal of 80 x 24."""
    from fedpac.report.plot import plot_text
    from fedpac.report.shown import curve_of
    from fedpac.report.text import rich_table
    from fedpac.report.web.gains import gains
    from fedpac.report.web.settings import settings_of

    (setting,) = settings_of(runs)
    by_method = {experiment.method: experiment for experiment in setting.experiments}
    fedpac, fedavg, local = (by_method[name] for name in METHODS)
    lines: dict[str, tuple[str, str, Experiment, Which]] = {
        "P": ("FedPAC", "one per site, from similar sites", fedpac, "received"),
        "T": ("FedAvg-FT", "one model, fine-tuned by each site", fedavg, "personal"),
        "L": ("Local-only", "each site alone", local, "personal"),
        "A": ("FedAvg", "one model for all", fedavg, "received"),
    }
    rows, ends, curves = [], {}, {}
    for letter, (name, about, experiment, which) in lines.items():
        at, means, spread = curve_of(experiment.runs, which, alone=False)
        curves[letter], ends[letter] = (at, means.tolist()), float(means[-1])
        found = None if letter == "L" else gains(experiment.runs, local.runs, which)
        rows.append(
            {
                "name": f"{letter} {name}",
                "about": about,
                "accuracy": f"{means[-1]:.1f}" + ("" if spread is None else f" ± {spread[-1]:.1f}"),
                "gain": "" if found is None else f"{found.count('gains')} / {found.count('loses')}",
            }
        )
    columns = {"name": "", "about": "", "accuracy": "accuracy %", "gain": "gain / lose"}
    seeds = len(fedpac.runs)
    title = f"20 sites in 5 groups; each group labels the digits differently ({seeds} seed{'s' * (seeds > 1)})"
    out.print(rich_table(rows, columns, title=title, left=["name", "about"]))
    for line in plot_text(curves, width=64, height=8, unit="round"):
        out.print("".join(f"[{COLOURS[c]}]{c}[/]" if c in COLOURS else escape(c) for c in line), highlight=False)
    compared = gains(fedpac.runs, local.runs, "received")
    assert compared is not None, "all methods have the same seeds"
    out.print(escape(_sentence(ends, compared)))
    out.print(f"Details, site by site, and who learned from whom: open {escape(str(report))}", soft_wrap=True)


def _sentence(ends: dict[str, float], found: Gains) -> str:
    """What was learned, whichever way it went."""
    start = f"One model for all gets {ends['A']:.0f} % of a site's digits right; a site alone gets {ends['L']:.0f} %"
    if ends["P"] <= ends["L"]:
        return f"{start}, FedPAC {ends['P']:.0f} %: collaborating did not pay off here."
    lost = found.count("loses")
    return (
        f"{start}. With FedPAC, each site learns from those that label as it does and gets {ends['P']:.0f} %: "
        f"{found.count('gains')} of {len(found.difference)} sites gain significantly (95 % intervals), "
        f"{lost or 'none'} {'loses' if lost < 2 else 'lose'}."
    )
