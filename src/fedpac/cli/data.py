"""fedpac data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from fedpac.cli.app import KNOWN, DataDir, Sets, app, counted, examples, out
from fedpac.errors import DataError


@app.command(
    rich_help_panel=KNOWN,
    epilog=examples(
        "fedpac data",
        "fedpac data cifar10 --download",
        "fedpac data digits --scenario dirichlet --clients 20 --figure dirichlet.png",
        "fedpac data describe north.csv south.csv --target diagnosis --out schema.toml",
    ),
)
def data(
    name: Annotated[
        str | None, typer.Argument(help="A data set, or 'describe' for your own tables.", show_default=False)
    ] = None,
    tables: Annotated[
        list[Path] | None,
        typer.Argument(help="describe: CSV or Parquet, one file or folder per site.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    download: Annotated[bool, typer.Option("--download", help="Download the data set if it is missing.")] = False,
    scenario: Annotated[
        str | None, typer.Option(help="Show how this scenario splits the data. Default: groups.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the scenario.", min=0)] = 0,
    sets: Sets = None,
    figure: Annotated[
        Path | None, typer.Option(help="Plot the class distribution of every client to this file.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="describe: the column to predict.")] = None,
    id: Annotated[
        str | None, typer.Option(help="describe: the column that identifies the patient or owner of a row.")
    ] = None,
    schema: Annotated[Path | None, typer.Option("--out", help="describe: the file to write.")] = None,
) -> None:
    """List data sets, show how a scenario splits them, and describe your own tables."""
    if name == "describe":
        _describe(tables or [], target, id, schema)
        return
    if tables:
        raise DataError(
            f"give one data set at a time, such as {name}; to draft a schema for tables: fedpac data describe FILES"
        )
    from fedpac.report.catalogue import DATA_SET_COLUMNS, TEXT_COLUMNS, catalogue
    from fedpac.report.text import rich_table

    if scenario is not None or clients is not None or sets or figure is not None:
        _show_scenario(name, data_dir, scenario, clients, seed, sets or [], figure)
        return
    if download and name is None:
        raise DataError("name the data set to download, such as: fedpac data fashion-mnist --download")
    rows = catalogue(name, data_dir, download)
    if name:
        for key, header in DATA_SET_COLUMNS.items():
            out.print(f"[bold]{header}[/]: {escape(rows[0][key])}", soft_wrap=True)
        return
    short = {key: header for key, header in DATA_SET_COLUMNS.items() if key not in ("source", "where")}
    out.print(rich_table(rows, short, left=TEXT_COLUMNS))
    from fedpac.data.datasets import data_root

    out.print(f"[dim]Data folder: {escape(str(data_root(data_dir)))}. Details: fedpac data NAME[/]", soft_wrap=True)


def _describe(tables: list[Path], target: str | None, id: str | None, schema: Path | None) -> None:
    """Draft the schema of the tables, to a file or to the screen."""
    from fedpac.data.schema import draft
    from fedpac.files import explained, write_atomically

    if not tables:
        raise DataError("give one file or folder per site, such as: fedpac data describe north.csv south.csv")
    text = draft(tables, schema.parent if schema else Path(), target, id)
    if schema is None:
        out.print(text, markup=False, soft_wrap=True, end="")
        return
    if schema.exists():
        raise DataError(f"{schema} already exists; choose another name, or remove it")
    with explained(schema.parent):
        write_atomically(schema, text.encode())
    out.print(
        f"Written: {escape(str(schema))}. Check it, then: fedpac run --tables {escape(str(schema))}", soft_wrap=True
    )


def _span(least: int, most: int) -> str:
    return str(most) if least == most else f"{least} to {most}"


def _show_scenario(
    name: str | None,
    data_dir: Path | None,
    scenario: str | None,
    clients: int | None,
    seed: int,
    sets: list[str],
    figure: Path | None,
) -> None:
    from fedpac.config import make_config
    from fedpac.config_values import override
    from fedpac.data.scenario import build, describe, repeated

    given = {"dataset": name, "scenario": scenario, "clients": clients}
    values: dict[str, Any] = {"data": {k: v for k, v in given.items() if v is not None}, "run": {"seed": seed}}
    for assignment in sets:
        values = override(values, assignment)
    config = make_config(values)
    built = build(config.data, seed, data_dir)
    counts = describe(built).numpy()
    sizes = [len(client.train) for client in built.clients]
    held = (counts > 0).sum(axis=1)
    what = f"of {_span(held.min(), held.max())} classes" if built.classes else "with a number to predict"
    out.print(
        f"{escape(built.name)}: {counted(len(built.clients), 'client')} with {_span(min(sizes), max(sizes))} training "
        f"samples {what}"
    )
    if built.class_names:
        out.print(f"classes: {escape(', '.join(built.class_names))}", soft_wrap=True)
    within, between = repeated(built)
    repeats = [f"{within:,} clients hold duplicate training samples"] if within else []
    repeats += [f"{between:,} training samples are shared by several clients"] if between else []
    if repeats:
        out.print("; ".join(repeats))
    if built.note:
        out.print(f"[yellow]{escape(built.note)}[/]")
    if figure is not None and not built.classes:
        raise DataError("--figure draws the classes that clients hold; here a number is predicted")
    if figure is not None:
        from fedpac.report.bubbles import bubble_plot
        from fedpac.report.style import write_figure
        from fedpac.runs.seeds import stand_in_mark

        title, groups = built.name + stand_in_mark([built.note]), [client.group for client in built.clients]
        written = write_figure(figure, bubble_plot, counts, title, groups)
        out.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True)
