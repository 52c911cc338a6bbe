"""fedpac methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedpac.cli.app import KNOWN, app, examples, out

if TYPE_CHECKING:
    from fedpac.inspect.cost import Cost
    from fedpac.methods import Method


@app.command(
    rich_help_panel=KNOWN,
    epilog=examples(
        "fedpac methods",
        "fedpac methods fedpac",
    ),
)
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this method in full.", show_default=False)] = None,
) -> None:
    """List the methods, or explain one: its equations, settings, messages, state and cost."""
    from fedpac.methods import PAPER, find_method, list_methods
    from fedpac.report.text import rich_table

    if name is None:
        rows = [
            {
                "name": key,
                "title": cls.title,
                "family": cls.family,
                "paper": "yes" if key in PAPER else "later",
                "about": (cls.__doc__ or "").strip().split("\n")[0],
            }
            for key, cls in sorted(list_methods().items(), key=lambda item: item[0] not in PAPER)
        ]
        columns = {
            "name": "name",
            "title": "title",
            "family": "family",
            "paper": "paper",
            "about": "summary",
        }
        out.print(rich_table(rows, columns, left=list(columns)))
        return
    _explain_method(find_method(name))


def _explain_method(cls: type[Method]) -> None:
    import inspect

    from fedpac.inspect.cost import WORK, measure_cost
    from fedpac.report.text import rich_table

    out.print(f"[bold]{escape(cls.title)}[/]  ({escape(cls.family)}); reports the [bold]{cls.reported}[/] accuracy\n")
    out.print("For classes only.\n" if cls.needs_classes else "For classes, and for numbers to predict.\n")
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
    cost = measure_cost(cls())

    def parts(sizes: dict[str, int]) -> str:
        return ", ".join(f"{escape(part)} ({size:,} B)" for part, size in sizes.items()) or "nothing"

    def passes(counted: dict[str, float]) -> str:
        return "; ".join(f"{n:g} × {WORK[kind]}" for kind, n in counted.items()) or "nothing"

    def needs(cost: Cost) -> str:
        sums = [f"sums of {', '.join(cost.summed)}"] if cost.summed else []
        reads = [f"plaintext {', '.join(cost.read)}"] if cost.read else []
        return escape("; ".join(sums + reads) or "nothing")

    out.print("\n[bold]Measured[/] with the paper's Fashion-MNIST network and E = 5, one client, one round:")
    for what, text in (
        ("server → client", f"{cost.bytes_down:,} B: {parts(cost.down)}"),
        ("client → server", f"{cost.bytes_up:,} B: {parts(cost.up)}"),
        ("the server needs", needs(cost)),
        ("kept at the client", parts(cost.on_client)),
        ("kept at the server", parts(cost.on_server) + " with 3 clients"),
        ("local training, passes over the data", passes(cost.training)),
        (f"then, to predict ({cls.reported})", passes(cost.predicting)),
    ):
        out.print(f"  {what}: {text}", soft_wrap=True)
    new = cls().newcomer()
    out.print("\n[bold]A newcomer[/], a client that never participated, gets")
    for what, text in (
        ("with labelled samples", new.labelled or "nothing: it must participate in rounds"),
        ("without", new.without or "nothing"),
    ):
        out.print(f"  {what}: {escape(text)}", soft_wrap=True)


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
