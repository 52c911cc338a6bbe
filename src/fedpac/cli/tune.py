"""fedpac tune."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedpac.cli.app import TRAIN, DataDir, Sets, Workers, app, examples, out

if TYPE_CHECKING:
    from fedpac.tuning import Trial, Tuned


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "fedpac tune --methods fedpac,ditto,local --dataset digits --trials 20 --rounds 30",
        "fedpac tune experiment.toml --methods fedpac --vary training.lr=0.001:0.3 --vary training.batch=10,20,50",
    ),
)
def tune(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; flags override it.", show_default=False)] = None,
    methods: Annotated[str, typer.Option(help="Comma-separated methods; each gets the same budget.")] = "fedpac",
    trials: Annotated[int, typer.Option(help="Trials per method.", min=1)] = 20,
    dataset: Annotated[str | None, typer.Option(help="Data set, see 'fedpac data'.")] = None,
    tables: Annotated[Path | None, typer.Option(help="Schema of your own tables.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="Network, see 'fedpac models'.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds per trial.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of the trials and of the search.")] = None,
    validation: Annotated[
        float | None, typer.Option(help="Share of each client's training data to hold out. Default: 0.2.")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=RANGE",
            help="Search space, such as training.lr=0.001:0.3. Repeatable.",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Output folder. An existing search is resumed.")] = Path(
        "tuning"
    ),
    workers: Workers = None,
    data_dir: DataDir = None,
    sets: Sets = None,
) -> None:
    """Tune every method on validation data, with the same budget for all (extra 'tune').

    By default, it searches the learning rate and the method's own numeric settings, from a tenth of the default to
    ten times the default. You can interrupt it: the same command resumes the search.
    """
    from fedpac.config_values import changed, override, read_config
    from fedpac.errors import ConfigError
    from fedpac.report.text import markdown, rich_table

    given: dict[str, Any] = read_config(config) if config else {}
    if tables is not None:
        given = {"model": "mlp", **changed(changed(given, "data.scenario", "natural"), "data.path", str(tables))}
    flags = {
        "data.dataset": dataset, "model": model, "run.rounds": rounds, "run.seed": seed,
        "data.validation_share": validation,
    }  # fmt: skip
    for key, value in flags.items():
        if value is not None:
            given = changed(given, key, value)
    for assignment in sets or []:
        given = override(given, assignment)
    names = [name for name in methods.replace(",", " ").split() if name]
    if not names:
        raise ConfigError("--methods is empty; expected names such as fedpac,ditto,local")
    settings = given.get("method", {})
    all_tuned = []
    for name in names:
        known = settings if isinstance(settings, dict) and settings.get("name") == name else {}
        values = {**given, "method": {**known, "name": name}}
        all_tuned.append(_tune(values, folder / name.replace(":", "-"), trials, vary or [], data_dir, workers))
    rows = [_row(tuned) for tuned in all_tuned]
    columns = {
        "method": "method", "trials": "trials", "best": "best trial", "settings": "settings",
        "validation": "validation", "default": "with defaults", "test": "test, selected",
    }  # fmt: skip
    out.print(rich_table(rows, columns, left=["method", "best", "settings"]))
    budget = all_tuned[0].budget
    note = (
        f"Each method: {budget.trials} trials of {budget.rounds} rounds, seed {budget.seed}, chosen by validation "
        f"{budget.by}, mean over clients; {budget.sampler}. The test value is that of the chosen trial alone, in the "
        "round that validation data chose."
    )
    out.print(f"[dim]{escape(note)}[/]")
    from fedpac.files import explained, write_atomically

    with explained(folder):
        write_atomically(folder / "tuning.md", (markdown(rows, columns) + "\n" + note + "\n").encode())
    out.print("Next, with other seeds:")
    for tuned in all_tuned:
        out.print(f"  fedpac run {escape(str(tuned.folder / 'best.toml'))} --seeds 3", soft_wrap=True)


def _tune(
    values: dict[str, Any], folder: Path, trials: int, vary: list[str], data_dir: Path | None, workers: int | None
) -> Tuned:
    from fedpac.cli.app import on_interrupt
    from fedpac.tuning import tune as search

    def seen(trial: Trial) -> None:
        what = f"{trial.value:.4f} in round {trial.round}" if trial.value is not None else "diverged"
        settings = ", ".join(f"{key}={_short(value)}" for key, value in trial.params.items())
        out.print(f"{folder.name} {trial.number + 1}/{trials}  {what}  {escape(settings)}", soft_wrap=True)

    with on_interrupt(lambda: "run the same command to continue"):
        return search(values, folder, trials, vary, data_dir, workers, seen=seen)


def _row(tuned: Tuned) -> dict[str, str]:
    from fedpac.runs.folder import RunStore

    best, first = tuned.best, tuned.trials[0]
    summary = RunStore(tuned.folder / best.folder).read_json("summary.json")
    return {
        "method": tuned.method,
        "trials": str(len(tuned.trials)),
        "best": best.folder,
        "settings": ", ".join(f"{key}={_short(value)}" for key, value in best.params.items()),
        "validation": f"{best.value:.4f}",
        "default": "diverged" if first.value is None else f"{first.value:.4f}",
        "test": f"{summary[summary['reported']]['selected']['mean']:.4f}",
    }


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
