"""fedpac run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpac.cli.app import TRAIN, DataDir, Sets, Track, Workers, app, examples, out
from fedpac.cli.common import carry_out, show_comparison
from fedpac.errors import ConfigError

if TYPE_CHECKING:
    from fedpac.config import Config

FLAGS = {  # flag -> key of the config
    "dataset": "data.dataset",
    "scenario": "data.scenario",
    "clients": "data.clients",
    "rounds": "run.rounds",
    "seed": "run.seed",
    "participation": "run.participation",
    "engine": "run.engine",
    "device": "run.device",
    "model": "model",
    "validation": "data.validation_share",
    "workers": "run.workers",
}


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "fedpac run --method fedpac --dataset fashion-mnist --rounds 200 --seed 0",
        "fedpac run experiment.toml --set training.lr=0.05 --set method.lam=0 --seeds 3",
        "fedpac run --tables schema.toml --method fedpac --rounds 20",
        "fedpac run --tables schema.toml --validation 0.2 --metrics auroc,ece --set run.patience=5",
        "fedpac run --dataset digits --track tensorboard:logs --track rounds.jsonl",
        "fedpac run --method my_package.my_module:MyMethod --dataset digits",
        "fedpac run --dataset cifar10 --model resnet8-gn --rounds 50",
    ),
)
def run(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML file; flags override it.", show_default=False),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Method to train, see 'fedpac methods'.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Data set, see 'fedpac data'.")] = None,
    scenario: Annotated[
        str | None, typer.Option(help="How data are split over clients: groups, dirichlet, ...")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Network, see 'fedpac models', or module:function.")] = None,
    tables: Annotated[
        Path | None, typer.Option(help="Schema of your own tables, see 'fedpac data describe'.", show_default=False)
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds, starting at --seed; one folder each.", min=1)] = 1,
    participation: Annotated[float | None, typer.Option(help="Share of clients that participate in a round.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="auto, process, serial, ray or flower; results are identical.")
    ] = None,
    validation: Annotated[
        float | None, typer.Option(help="Share of each client's training data to hold out and select the round on.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="Further metrics, such as auroc,ece,brier; see docs/choosing.md.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Device to train on: cpu, cuda, ...")] = None,
    workers: Workers = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="A new folder. Default: one in runs/. With several seeds, their parent folder.",
        ),
    ] = None,
    data_dir: DataDir = None,
    sets: Sets = None,
    track: Track = None,
    figures: Annotated[bool, typer.Option(help="Plot the run's figures at the end.")] = True,
    live: Annotated[bool, typer.Option("--live", help="Serve a live page of the run, on this machine only.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Print where the time went at the end.")] = False,
) -> None:
    """Train one method on one data set, and write everything to a folder.

    Unset options default to the paper's values; config.toml in the folder lists all values used.
    """
    from fedpac.config import make_config
    from fedpac.config_values import changed, override, read_config
    from fedpac.tracking import tracker

    values: dict[str, Any] = read_config(config) if config else {}
    if method is not None:
        settings = values.get("method", {})
        known = settings if isinstance(settings, dict) and settings.get("name") == method else {}
        values = {**values, "method": {**known, "name": method}}  # another method's settings do not apply to this one
    if tables is not None:
        values = {"model": "mlp", **changed(changed(values, "data.scenario", "natural"), "data.path", str(tables))}
    given = locals()
    for flag, key in FLAGS.items():
        if given[flag] is not None:
            values = changed(values, key, given[flag])
    if metrics is not None:
        values = changed(values, "run.metrics", metrics.replace(",", " ").split())
    for assignment in sets or []:
        values = override(values, assignment)
    first = make_config(values)
    callbacks = [tracker(target) for target in track or []]
    if track and (seeds > 1 or first.run.engine == "flower"):
        raise ConfigError(
            "--track supports a single run in this process; with several seeds, start one command per seed"
        )
    chosen = [make_config(changed(values, "run.seed", seed)) for seed in range(first.run.seed, first.run.seed + seeds)]
    made = [_new_folder(each) if folder is None else folder / f"seed{each.run.seed}" for each in chosen]
    if seeds == 1 and folder is not None:
        made = [folder]
    if live:
        from fedpac.cli.watch import start_beside

        out.print(f"Live page: {start_beside(made)}   (closing it does not affect the run)", soft_wrap=True)
    for each, place in zip(chosen, made, strict=True):
        carry_out(each, place, data_dir, figures=figures, profile=profile, callbacks=callbacks, result=seeds == 1)
    if seeds > 1:
        from fedpac.runs.read import read_runs

        show_comparison(read_runs(made), None, csv=False)


def _new_folder(config: Config) -> Path:
    name = str(config.method["name"]).replace(":", "-")
    base = Path("runs") / f"{name}-{config.data.dataset}-seed{config.run.seed}"
    folder, n = base, 1
    while folder.exists():
        n += 1
        folder = base.with_name(f"{base.name}-{n}")
    return folder
