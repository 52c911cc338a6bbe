"""fedpac demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpac.cli.app import Workers, app, out
from fedpac.cli.common import carry_out, show_comparison
from fedpac.errors import RunError


@app.command(epilog="Example:  fedpac demo --rounds 10")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Replaced if it is there.")] = Path("demo-runs"),
    rounds: Annotated[int, typer.Option(help="Communication rounds of each method.", min=1)] = 20,
    workers: Workers = None,
) -> None:
    """FedPAC beside FedAvg, FedAvg-FT and Local-only on handwritten digits, in a few minutes at most."""
    import shutil

    from fedpac.config import make_config
    from fedpac.report.heatmaps import heatmap_text
    from fedpac.runs.read import read_run

    names = ("fedpac", "fedavg", "fedavg-ft", "local")
    if folder.exists():
        strangers = [p.name for p in folder.iterdir()] if folder.is_dir() else [folder.name]
        if strangers := sorted(set(strangers) - {*names, "comparison"}):
            raise RunError(f"{folder} is not a demo's ({strangers[0]}), and is left alone: choose another with --out")
        shutil.rmtree(folder)
    for name in names:
        values = {
            "method": name,
            "data": {"dataset": "digits"},
            "run": {"rounds": rounds, "evaluate_every": max(1, rounds // 15), "workers": workers},
        }
        carry_out(make_config(values), folder / name, None, result=False, figures=name == "fedpac")
    runs = [read_run(folder / name) for name in names]
    show_comparison(runs, folder / "comparison", csv=True)
    last = max(runs[0].peer_weights)
    out.print(f"\nWho learns from whom in FedPAC, round {last} (rows receive, clients ordered by group):")
    for line in heatmap_text(runs[0]):
        out.print(f"  [blue]{line}[/]")
    out.print(f"\nThe heat map: {folder / 'fedpac' / 'figures' / 'weights.png'}")
