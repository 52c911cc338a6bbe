"""fedpac methods and data: what there is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedpac.cli.app import DataDir, Sets, app, out
from fedpac.errors import DataError

if TYPE_CHECKING:
    from fedpac.methods import Method


@app.command(epilog="Examples:  fedpac methods  |  fedpac methods fedpac")
def methods(
    name: Annotated[str | None, typer.Argument(help="One method, in full.", show_default=False)] = None,
) -> None:
    """List the methods, or explain one: its equations, settings, messages, state and cost."""
    from fedpac.methods import find_method
    from fedpac.methods import methods as all_methods
    from fedpac.runs.tables import rich_table

    if name is None:
        rows = [
            {"name": key, "title": cls.title, "family": cls.family, "about": (cls.__doc__ or "").strip().split("\n")[0]}
            for key, cls in all_methods().items()
        ]
        columns = {"name": "name", "title": "title", "family": "family", "about": "in one line"}
        out.print(rich_table(rows, columns, left=list(columns)))
        return
    _explain_method(find_method(name))


def _explain_method(cls: type[Method]) -> None:
    import inspect

    from fedpac.runs.anatomy import WORK, dissect
    from fedpac.runs.tables import rich_table

    out.print(f"[bold]{escape(cls.title)}[/]  ({escape(cls.family)}); reports the [bold]{cls.reported}[/] accuracy\n")
    out.print(escape(inspect.cleandoc(cls.__doc__ or "")), soft_wrap=True)
    out.print(f"[dim]{escape(inspect.cleandoc(inspect.getmodule(cls).__doc__ or ''))}[/]\n", soft_wrap=True)
    if cls.model_fields:
        rows = [
            {
                "name": key,
                "default": str(field.default),
                "allowed": _allowed(field),
                "about": field.description or "",
            }
            for key, field in cls.model_fields.items()
        ]
        columns = {"name": "setting", "default": "default", "allowed": "allowed", "about": "meaning"}
        out.print(rich_table(rows, columns, left=list(columns)))
    anatomy = dissect(cls())

    def parts(sizes: dict[str, int]) -> str:
        return ", ".join(f"{escape(part)} ({size:,} B)" for part, size in sizes.items()) or "nothing"

    def passes(counted: dict[str, float]) -> str:
        return "; ".join(f"{n:g} × {WORK[kind]}" for kind, n in counted.items()) or "nothing"

    out.print("\n[bold]Measured[/] with the paper's Fashion-MNIST network and E = 5, one client, one round:")
    for what, text in (
        ("server → client", f"{anatomy.bytes_down:,} B: {parts(anatomy.down)}"),
        ("client → server", f"{anatomy.bytes_up:,} B: {parts(anatomy.up)}"),
        ("kept at the client", parts(anatomy.on_client)),
        ("kept at the server", parts(anatomy.on_server) + " with 3 clients"),
        ("local training, passes over the data", passes(anatomy.training)),
        (f"then, to predict ({cls.reported})", passes(anatomy.predicting)),
    ):
        out.print(f"  {what}: {text}", soft_wrap=True)


def _allowed(field: Any) -> str:
    """The range of a pydantic field, in symbols."""
    from typing import Literal, get_args, get_origin

    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if choices:
        return ", ".join(map(str, choices))
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(bound, key):g}"
        for bound in field.metadata
        for key, sign in signs.items()
        if hasattr(bound, key)
    ]
    return ", ".join(bounds) or getattr(field.annotation, "__name__", str(field.annotation))


@app.command(
    epilog="Examples:  fedpac data  |  fedpac data cifar10 --download  |  "
    "fedpac data digits --scenario dirichlet --clients 20 --figure dirichlet.png"
)
def data(
    name: Annotated[str | None, typer.Argument(help="One data set.", show_default=False)] = None,
    data_dir: DataDir = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch the named data set if it is not there.")] = False,
    scenario: Annotated[str | None, typer.Option(help="Show how this scenario deals it out (groups).")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients of the scenario.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the scenario.", min=0)] = 0,
    sets: Sets = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the scenario: clients by classes.")] = None,
) -> None:
    """Which data sets are here, and what a scenario makes of them."""
    from fedpac.runs.catalogue import COLUMNS, TEXT, catalogue
    from fedpac.runs.tables import rich_table

    if scenario is not None or clients is not None or sets or figure is not None:
        _show_scenario(name, data_dir, scenario, clients, seed, sets or [], figure)
        return
    if download and name is None:
        raise DataError("name the data set to download, such as: fedpac data fashion-mnist --download")
    rows = catalogue(name, data_dir, download)
    if name:
        for key, header in COLUMNS.items():
            out.print(f"[bold]{header}[/]: {escape(rows[0][key])}", soft_wrap=True)
        return
    short = {key: header for key, header in COLUMNS.items() if key not in ("source", "where")}
    out.print(rich_table(rows, short, left=TEXT))
    from fedpac.data.datasets import data_root

    out.print(
        f"[dim]They are looked for in {escape(str(data_root(data_dir)))}. More: fedpac data NAME[/]", soft_wrap=True
    )


def _show_scenario(
    name: str | None,
    data_dir: Path | None,
    scenario: str | None,
    clients: int | None,
    seed: int,
    sets: list[str],
    figure: Path | None,
) -> None:
    from fedpac.config import make_config, override
    from fedpac.data.scenario import build, describe, repeated

    given = {"dataset": name, "scenario": scenario, "clients": clients}
    values: dict[str, Any] = {"data": {k: v for k, v in given.items() if v is not None}, "run": {"seed": seed}}
    for assignment in sets:
        values = override(values, assignment)
    config = make_config(values)
    built = build(config.data, seed, data_dir)
    counts = describe(built).numpy()
    sizes = counts.sum(axis=1)
    held = (counts > 0).sum(axis=1)
    out.print(
        f"{escape(built.name)}: {len(built.clients)} clients with {sizes.min()} to {sizes.max()} training samples of "
        f"{held.min()} to {held.max()} classes"
    )
    within, between = repeated(built)
    repeats = [f"{within:,} clients hold a training sample more than once"] if within else []
    repeats += [f"{between:,} training samples are held by several clients"] if between else []
    if repeats:
        out.print("; ".join(repeats))
    if built.note:
        out.print(f"[yellow]{escape(built.note)}[/]")
    if figure is not None:
        from fedpac.runs.bubbles import bubble_plot
        from fedpac.runs.reading import stand_in_mark

        written = bubble_plot(
            counts, built.name + stand_in_mark([built.note]), figure, [client.group for client in built.clients]
        )
        out.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True)
