"""A Sphinx extension: reference pages of commands, config keys and methods, written from the code at every build."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx

from fedpac.config import Config
from fedpac.methods import find_method, list_methods

MARKUP = re.compile(r"\[/?[a-z ]*\]")  # rich's


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", as_written)
    app.connect("source-read", name_files)
    return {"parallel_read_safe": True}


def name_files(app: Sphinx, page: str, content: list[str]) -> None:
    """A link to a file of the repository that is no page of the site becomes its name."""
    upwards = "../" * (page.count("/") + 1)
    content[0] = re.sub(rf"\[([^]]*)\]\({upwards}([^)#]+)(?:#[^)]*)?\)", r"\1 (`\2` in the repository)", content[0])


def as_written(app: Sphinx, what: str, name: str, item: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text: paragraphs stay paragraphs, and what is indented or in columns is shown as it is."""
    paragraphs = "\n".join(lines).strip("\n").split("\n\n")
    lines[:] = [line for paragraph in paragraphs for line in (*_rest(paragraph), "")]


def _rest(paragraph: str) -> list[str]:
    lines = paragraph.splitlines()
    if any(re.search(r"^\s|\S\s{2,}\S", line) for line in lines):
        return ["::", "", *(f"    {line}" for line in lines)]
    pieces = " ".join(lines).split("`")  # every second one is code
    escaped = (re.sub(r"([*|_\\])", r"\\\1", piece) for piece in pieces)
    return ["".join(f"``{pieces[at]}``" if at % 2 else prose for at, prose in enumerate(escaped))]


def write_pages(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    for name, lines in {"commands": commands(), "config": config_keys(), "methods": methods()}.items():
        text = "\n".join(lines) + "\n"
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:  # an unchanged page is not built again
            path.write_text(text)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    titles = list(head)
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in [titles, ["---"] * len(titles), *cells]] + [""]


# --- commands -----------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    import fedpac.cli  # noqa: F401  (registers the commands)
    from fedpac.cli.app import app

    yield from ("# Commands", "", "`fedpac COMMAND --help` says the same in a terminal.", "")
    yield from command_pages("fedpac", typer.main.get_command(app), "##")


def command_pages(name: str, command: Any, level: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        for inner in sorted(command.commands):
            if not command.commands[inner].hidden:
                yield from command_pages(f"{name} {inner}", command.commands[inner], level)
        return
    yield from (f"{level} {name}", "", plain(command.help or ""), "")
    if command.epilog:
        examples = [line.removeprefix("$ ") for line in plain(command.epilog).split("\n\n")[1:]]
        yield from ("```sh", *examples, "```", "")
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    rows = [[f"`{parameter.name.upper()}`", plain(getattr(parameter, "help", "") or ""), ""] for parameter in arguments]
    rows += [[option_names(option), plain(option.help or ""), default_of(option)] for option in options]
    yield from table(["option", "meaning", "default"], rows)


def option_names(option: Any) -> str:
    value = "" if option.is_flag else f" {(option.metavar or option.type.name).upper()}"
    return ", ".join(f"`{name}{value}`" for name in option.opts)


def default_of(option: Any) -> str:
    simple = isinstance(option.default, str | int | float) and not isinstance(option.default, bool)
    return f"`{option.default}`" if simple and option.default != "" else ""


def plain(text: str) -> str:
    return MARKUP.sub("", text).strip()


# --- config -------------------------------------------------------------------------------------------------------


def config_keys() -> Iterator[str]:
    yield from (
        "# Config keys",
        "",
        "A config is a TOML file: `fedpac run config.toml`. `--set section.key=value` sets any key on the command",
        "line. Unset keys default to the paper's values for the data set and the scenario; a run's `config.toml` has",
        "them all.",
        "",
    )
    top = {name: field for name, field in Config.model_fields.items() if section_of(field) is None}
    yield from ("## At the top", "", *key_table(top))
    for name, field in Config.model_fields.items():
        if (section := section_of(field)) is not None:
            yield from (f"## [{name}]", "", (section.__doc__ or "").strip(), "", *key_table(section.model_fields))


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    kinds = [field.annotation, *get_args(field.annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def key_table(fields: dict[str, FieldInfo]) -> list[str]:
    rows = [[f"`{name}`", field.description or "", f"`{shown(field)}`"] for name, field in fields.items()]
    return table(["key", "meaning", "default"], rows)


def shown(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    default = field.get_default(call_default_factory=True)
    return "unset" if default is None else str(default)


# --- methods ------------------------------------------------------------------------------------------------------


def methods() -> Iterator[str]:
    yield from ("# Methods", "", "`fedpac methods NAME` says the same, and what a round costs.", "")
    for name in list_methods():
        method = find_method(name)
        about = (method.__doc__ or "").strip()
        first, _, rest = about.partition("\n")
        yield from (f"## {method.title}", "", f"`--method {name}`, family: {method.family}", "", first, "")
        if rest.strip():
            yield from ("```text", *(line.removeprefix("    ") for line in rest.strip("\n").splitlines()), "```", "")
        if method.model_fields:
            yield from key_table(method.model_fields)
