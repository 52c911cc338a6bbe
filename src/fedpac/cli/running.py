"""fedpac run, resume and demo."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedpac.cli.app import DataDir, Folder, Sets, Workers, app, on_interrupt, out
from fedpac.cli.showing import Progress, show_comparison, show_profile, show_result
from fedpac.errors import RunError

if TYPE_CHECKING:
    from fedpac.config import Config
    from fedpac.federation import RoundReport

FLAGS = {  # flag -> key of the config
    "dataset": "data.dataset",
    "scenario": "data.scenario",
    "clients": "data.clients",
    "rounds": "run.rounds",
    "seed": "run.seed",
    "participation": "run.participation",
    "engine": "run.engine",
    "device": "run.device",
    "workers": "run.workers",
}


@app.command(
    epilog="Examples:  fedpac run --method fedpac --dataset fashion-mnist --rounds 200 --seed 0  |  "
    "fedpac run experiment.toml --set training.lr=0.05 --set method.lam=0  |  "
    "fedpac run --method my_package.my_module:MyMethod --dataset digits",
)
def run(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML file; flags override it.", show_default=False),
    ] = None,
    method: Annotated[str | None, typer.Option(help="See 'fedpac methods'.")] = None,
    dataset: Annotated[str | None, typer.Option(help="See 'fedpac data'.")] = None,
    scenario: Annotated[
        str | None, typer.Option(help="How data differ between clients: groups, dirichlet, ...")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Names every random stream of the run.")] = None,
    participation: Annotated[float | None, typer.Option(help="Share of clients in a round.")] = None,
    engine: Annotated[str | None, typer.Option(help="auto, process or serial; the numbers are the same.")] = None,
    device: Annotated[str | None, typer.Option(help="What clients are trained on: cpu, cuda, ...")] = None,
    workers: Workers = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="A new folder. Default: runs/<method>-<dataset>-seed<seed>."),
    ] = None,
    data_dir: DataDir = None,
    sets: Sets = None,
    figures: Annotated[bool, typer.Option(help="Draw the run's figures at the end.")] = True,
    profile: Annotated[bool, typer.Option("--profile", help="Show at the end where the time went.")] = False,
) -> None:
    """Train one method on one data set, into a folder.

    The paper's settings fill in whatever is not said; the folder's config.toml states them all.
    """
    from fedpac.config import changed, make_config, override, read_config

    values: dict[str, Any] = read_config(config) if config else {}
    if method is not None:
        settings = values.get("method", {})
        known = settings if isinstance(settings, dict) and settings.get("name") == method else {}
        values = {**values, "method": {**known, "name": method}}  # another method's settings do not apply to this one
    given = locals()
    for flag, key in FLAGS.items():
        if given[flag] is not None:
            values = changed(values, key, given[flag])
    for assignment in sets or []:
        values = override(values, assignment)
    chosen = make_config(values)
    _carry_out(chosen, folder or _new_folder(chosen), data_dir, figures=figures, profile=profile)


@app.command(epilog="Example:  fedpac resume runs/fedpac-digits-seed0")
def resume(
    folder: Folder,
    workers: Workers = None,
    data_dir: DataDir = None,
    figures: Annotated[bool, typer.Option(help="Draw the run's figures at the end.")] = True,
) -> None:
    """Continue a run that was interrupted, as if it had not been."""
    from fedpac.config import make_config, read_config
    from fedpac.runs.store import RunStore

    if RunStore.open(folder).finished:
        out.print(f"{escape(str(folder))} is finished; there is nothing to continue.")
        return
    config = make_config(read_config(folder / "config.toml"))
    _carry_out(config, folder, data_dir, figures=figures, continuing=True, workers=workers)


@app.command(epilog="Example:  fedpac demo --rounds 10")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Replaced if it is there.")] = Path("demo-runs"),
    rounds: Annotated[int, typer.Option(help="Communication rounds of each method.", min=1)] = 20,
    workers: Workers = None,
) -> None:
    """FedPAC beside FedAvg, FedAvg-FT and Local-only on handwritten digits, in a few minutes at most."""
    import shutil

    from fedpac.config import make_config
    from fedpac.runs.heatmaps import heatmap_text
    from fedpac.runs.reading import read_run

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
        _carry_out(make_config(values), folder / name, None, result=False, figures=name == "fedpac")
    runs = [read_run(folder / name) for name in names]
    show_comparison(runs, folder / "comparison", csv=True)
    last = max(runs[0].peer_weights)
    out.print(f"\nWho learns from whom in FedPAC, round {last} (rows receive, clients ordered by group):")
    for line in heatmap_text(runs[0]):
        out.print(f"  [blue]{line}[/]")
    out.print(f"\nThe heat map: {folder / 'fedpac' / 'figures' / 'weights.png'}")


def _new_folder(config: Config) -> Path:
    name = str(config.method["name"]).replace(":", "-")
    base = Path("runs") / f"{name}-{config.data.dataset}-seed{config.run.seed}"
    folder, n = base, 1
    while folder.exists():
        n += 1
        folder = base.with_name(f"{base.name}-{n}")
    return folder


def _carry_out(
    config: Config,
    folder: Path,
    data_dir: Path | None,
    *,
    figures: bool = True,
    continuing: bool = False,
    workers: int | None = None,
    result: bool = True,
    profile: bool = False,
) -> None:
    """Run or resume with progress, then show and draw the result."""
    from fedpac.runs.profile import Profile
    from fedpac.runs.run import resume as resume_run
    from fedpac.runs.run import run as start_run

    gc.freeze()  # what is imported stays: neither this process nor its workers need to look through it for garbage

    title = config.make_method().title
    out.print(
        f"[bold]{escape(title)}[/] on {config.data.dataset} {config.data.scenario}, {config.run.rounds} rounds, "
        f"seed {config.run.seed} → {escape(str(folder))}"
    )

    def how_to_go_on() -> str:
        started = (folder / "config.toml").exists()
        return f"continue with: fedpac resume {folder}" if started else "nothing was written"

    with (
        on_interrupt(how_to_go_on),
        Progress(config.run.rounds) as progress,
        Profile() if profile else nullcontext() as measured,
    ):

        def see(report: RoundReport) -> None:
            progress.see(report)
            if measured is not None:
                measured.see(report)

        summary = resume_run(folder, data_dir, see, workers) if continuing else start_run(config, folder, data_dir, see)
    if summary["note"]:
        out.print(f"[yellow]Not the published data: {escape(summary['note'])}[/]")
    if result:
        show_result(summary)
    if measured is not None:
        show_profile(measured, folder)
    if figures:
        from fedpac.runs.figures import draw_run
        from fedpac.runs.reading import read_run

        written = draw_run(read_run(folder), folder / "figures")
        out.print(f"Figures: {', '.join(str(p) for p in written if p.suffix == '.png')}", soft_wrap=True)
