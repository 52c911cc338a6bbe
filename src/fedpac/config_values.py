"""A config's values before they are checked: read from TOML, and changed one by one."""

import tomllib
from pathlib import Path
from typing import Any

from fedpac.errors import ConfigError
from fedpac.strict import shown

LONGEST = 32_768  # characters: the time to parse TOML grows with the square of what a stranger writes


class NotTomlError(Exception):
    """Text that is not TOML, or not TOML that anybody means."""


def read_config(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST + 1)
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {path} cannot be read: {error}") from None
    return parse_toml(text, f"the config file {path}")


def parse_toml(text: str, what: str) -> dict[str, Any]:
    try:
        return _toml(text)
    except NotTomlError as error:
        raise ConfigError(f"{what} is not valid TOML: {error}") from None


def _toml(text: str) -> dict[str, Any]:
    if len(text) > LONGEST:
        raise NotTomlError(f"it has more than {LONGEST:,} characters, too long for a config")
    try:
        return tomllib.loads(text)
    except (RecursionError, ValueError) as error:  # the parser's own error, thousands of brackets or of digits
        raise NotTomlError(error) from None


def override(values: dict[str, Any], assignment: str) -> dict[str, Any]:
    """Values with one field changed: 'training.lr=0.05', 'method.lam=0'."""
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise ConfigError(f"'{assignment}' is not of the form section.key=value, such as training.lr=0.05")
    try:
        value = _toml(f"value = {text}")["value"]
    except NotTomlError:
        value = text  # a bare word is a string
    return changed(values, key, value)


def changed(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Values with the field 'section.key' set; what they were is left as it is."""
    result = {**values}
    at = result
    *sections, last = key.split(".")
    for name in sections:
        inner = at.get(name, {})
        if name == "method" and isinstance(inner, str):  # short for [method] name = ...
            inner = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"config: {name} = {shown(inner)}: expected a section with keys such as {key}")
        at[name] = {**inner}
        at = at[name]
    at[last] = value
    return result
