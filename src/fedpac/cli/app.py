"""What all commands share: the application, the consoles, common options, mistakes and interrupts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
import typer.core
from rich.markup import escape

from fedpac.cli.streams import PlainConsole, printable_everywhere
from fedpac.errors import FedpacError
from fedpac.version import __version__

if TYPE_CHECKING:
    from types import FrameType

_make_argument = typer.core.TyperArgument.__init__


def _keep_help(self: typer.core.TyperArgument, **settings: Any) -> None:
    """Click 8.5 has a help of its own for arguments, and sets it to None after typer has set it."""
    _make_argument(self, **settings)
    self.help = settings.get("help")


typer.core.TyperArgument.__init__ = _keep_help  # type: ignore[method-assign]


def examples(*commands: str) -> str:
    """The end of a command's help: one example a line."""
    return "\n\n".join(["Examples:" if len(commands) > 1 else "Example:", *(f"$ {command}" for command in commands)])


# the commands in groups, as `fedpac --help` shows them
TRAIN, LOOK, USE = "Train", "Look at results", "Use the models"
SITES, KNOWN, PAPER = "A federation of real sites", "What there is, and your own", "The paper's tables and figures"

app = typer.Typer(
    name="fedpac",
    help="Personalised federated learning: FedPAC and the methods it is compared with.",
    epilog="Start with: fedpac run --dataset digits --rounds 20",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else 160  # a file or a pipe has no width of its own
out = PlainConsole(highlight=False, width=wide)
err = PlainConsole(stderr=True, highlight=False)

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Folder with the data sets. Default: $FEDPAC_DATA, or else the user's cache folder."
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any config key, such as training.lr=0.05. Repeatable."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TARGET",
        help="Log rounds to a file (.jsonl, .csv), tensorboard:FOLDER or mlflow:URI. Repeatable.",
    ),
]
Workers = Annotated[int | None, typer.Option(help="Worker processes. Default: one per core.", min=1)]
Folder = Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)]
OwnMethod = Annotated[
    str | None,
    typer.Option(
        "--method", metavar="MODULE:CLASS", help="The run's method, if it is not part of fedpac; its code is imported."
    ),
]
OwnNetwork = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODULE:FUNCTION",
        help="The run's network, if it is not part of fedpac; its code is imported.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import whatever method and network the folder names. This runs their code."),
]
WhichModel = Annotated[
    str | None,
    typer.Option(help="received or personal. Default: the one reported in the method's paper."),
]


def main(arguments: list[str] | None = None) -> NoReturn:
    """The entry point. A mistake of the user's is one message, not a traceback."""
    printable_everywhere()
    try:
        with on_interrupt(lambda: "nothing was written"):
            app(arguments, prog_name="fedpac")  # also for python -m fedpac
    except FedpacError as error:
        show_error(error)
        sys.exit(1)
    except BrokenPipeError:  # the reader of a pipe has gone, as in `fedpac methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"fedpac {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def counted(number: int, thing: str) -> str:
    """'1 round', '2 rounds'."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def show_error(error: FedpacError) -> None:
    err.print(f"[bold red]error:[/] [red]{escape(str(error))}[/]", soft_wrap=True)


def show_warning(error: FedpacError) -> None:
    err.print(f"[bold yellow]skipped:[/] {escape(str(error))}", soft_wrap=True)


@contextmanager
def on_interrupt(hint: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C, and the polite kill of a batch system, end the process at once and say how to go on.

    A run can be continued after a kill at any moment, so there is nothing to tidy up. An exception instead could be
    swallowed by a library that is being imported, or wait for a lock that the interrupted line holds. The workers end
    when their pipes close.
    """
    parent = os.getpid()

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        if os.getpid() == parent:
            show_cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # the progress bar hides it
            os.write(2, f"{show_cursor}interrupted; {hint()}\n".encode(errors="replace"))
        os._exit(130)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
