"""fedpac models."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import KNOWN, app, examples, out
from fedpac.errors import ConfigError

TOKENS = 1000  # of a vocabulary, for an example


@app.command(
    rich_help_panel=KNOWN,
    epilog=examples(
        "fedpac models",
        "fedpac models cnn --shape 3,224,224",
        "fedpac models my_module:make --shape 30 --classes 2",
    ),
)
def models(
    name: Annotated[
        str | None, typer.Argument(help="A network, or your own as module:function.", show_default=False)
    ] = None,
    shape: Annotated[str | None, typer.Option(help="Shape of a sample, such as 3,32,32. Default: an example.")] = None,
    classes: Annotated[int, typer.Option(help="Number of classes.", min=1)] = 10,
) -> None:
    """List the networks: input, size, and whether the fused kernels apply."""
    from fedpac import native
    from fedpac.networks import NETWORKS, is_own_network
    from fedpac.report.text import rich_table

    asked = None if shape is None else _shape(shape)
    if name is not None and is_own_network(name) and asked is None:
        raise ConfigError(f"give the shape of a sample of '{name}': --shape, such as 3,32,32")
    rows = []
    for each in [name] if name is not None else NETWORKS:
        try:
            rows.append(_row(each, asked, classes))
        except ConfigError:
            if name is not None:
                raise
            unfit = dict.fromkeys(("shape", "parameters", "features"), "–")
            rows.append({"name": each, "takes": NETWORKS[each].takes, **unfit, "speed": "does not accept such samples"})
    columns = {
        "name": "name", "takes": "takes", "shape": "sample", "parameters": "weights", "features": "features",
        "speed": "speed",
    }  # fmt: skip
    out.print(rich_table(rows, columns, left=["name", "takes", "shape", "speed"]))
    if not native.available():
        out.print(f"[yellow]Native kernels are unavailable: {escape(native.reason())}[/]", soft_wrap=True)
    if name in NETWORKS:
        out.print(escape(NETWORKS[name].about))


def _row(name: str, asked: tuple[int, ...] | None, classes: int) -> dict[str, str]:
    import torch

    from fedpac.inspect.network import facts
    from fedpac.networks import NETWORKS, build_model

    known = NETWORKS.get(name)
    shape = asked or (known.example if known else ())
    tokens = name == "transformer"
    sample = torch.full(shape, TOKENS - 1) if tokens else torch.zeros(shape)
    found = facts(build_model(name, shape, classes, 0, TOKENS if tokens else None), sample, classes)
    return {
        "name": name, "takes": known.takes if known else "your own", "shape": "x".join(map(str, shape)),
        "parameters": f"{found.parameters:,}", "features": str(found.features), "speed": found.speed,
    }  # fmt: skip


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"--shape {text}: expected sizes such as 3,32,32")
    return sizes
