"""fedpac check."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from fedpac.cli.app import KNOWN, app, err, examples, out

COLOURS = {"passed": "green", "failed": "bold red", "not reached": "yellow"}


@app.command(
    rich_help_panel=KNOWN,
    epilog=examples(
        "fedpac check my_module:MyMethod",
        "fedpac check my_module:MyMethod --set lam=2",
    ),
)
def check(
    method: Annotated[str, typer.Argument(help="Your own class, as module:Class, or a name from 'fedpac methods'.")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method, such as lam=2. Repeatable."),
    ] = None,
) -> None:
    """Check that a method meets the contract: identical numbers on every engine, no data in messages, and more.

    Runs small federations for a few seconds. Exits with code 1 if a check fails.
    """
    from fedpac.config_values import override
    from fedpac.methods import find_method
    from fedpac.testing import examine

    settings: dict[str, Any] = {}
    for assignment in sets or []:
        settings = override(settings, assignment)
    cls = find_method(method)
    verdicts = []
    with err.status("checking"):
        for verdict in examine(cls, settings):
            verdicts.append(verdict)
            colour = COLOURS[verdict.result]
            remark = f"  [dim]{escape(verdict.found)}[/]" if verdict.passed and verdict.found else ""
            out.print(f"[{colour}]{verdict.result:<12}[/] {escape(verdict.name)}{remark}", soft_wrap=True)
    failed = [verdict for verdict in verdicts if verdict.result == "failed"]
    for verdict in failed:
        out.print(f"\n[bold]{escape(verdict.name)}[/]", soft_wrap=True)
        out.print(f"  found:     {escape(verdict.found)}", soft_wrap=True)
        out.print(f"  expected:  {escape(verdict.right)}", soft_wrap=True)
    passed = sum(verdict.passed for verdict in verdicts)
    out.print(f"\n{escape(cls.title)}: {passed} of {len(verdicts)} checks passed")
    raise typer.Exit(0 if passed == len(verdicts) else 1)
