"""The methods, one file each: adding a file with a `Method` that has a name is all it takes to add one."""

import importlib
import pkgutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedpac.errors import ConfigError, unknown
from fedpac.methods.base import Method
from fedpac.strict import checked, shown

__all__ = ["PAPER", "Method", "checked_class", "configured", "find_method", "is_own", "list_methods", "make_method"]

PAPER = frozenset({  # the 22 methods of the FedPAC paper; all others came later
    "apfl", "ditto", "fed-rod", "fedavg", "fedavg-ft", "fedbabu", "fedem", "fedem-ft", "fedfomo", "fedpac", "fedper",
    "fedproto-g", "fedproto-l", "fedprox", "fedrep", "hypcluster", "knn-per", "lg-fedavg", "local", "pfedhn", "pfedme",
    "scaffold",
})  # fmt: skip


@cache
def list_methods() -> dict[str, type[Method]]:
    """All methods of this folder by name."""
    found: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(__path__):
        for item in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(item, type) and issubclass(item, Method) and "name" in vars(item):
                found[item.name] = item
    return dict(sorted(found.items()))


def is_own(name: object) -> bool:
    """Whether the name is 'package.module:Class': somebody's own code, which runs when it is imported."""
    return isinstance(name, str) and ":" in name


def find_method(name: str) -> type[Method]:
    """The method of that name, or your own class given as 'package.module:Class'."""
    if not isinstance(name, str):
        raise ConfigError(f"method.name = {shown(name)}: expected the name of a method")
    if is_own(name):
        module, _, attribute = name.partition(":")
        if (here := str(Path.cwd())) not in sys.path:  # an installed command does not look for modules beside the user
            sys.path.append(here)
        try:
            item = getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as error:  # whatever the user's module does when it is imported
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(f"method '{name}': {what}; expected an importable 'package.module:Class'") from None
        return checked_class(name, item)
    if name not in list_methods():
        raise ConfigError(unknown("method", name, list_methods()))
    return list_methods()[name]


def checked_class(name: str, item: Any) -> type[Method]:
    """The item, if it is a class with all that a method has."""
    if not (isinstance(item, type) and issubclass(item, Method)):
        raise ConfigError(f"method '{name}' is not a subclass of fedpac.Method")
    lacking = sorted(item.__abstractmethods__) + [key for key in ("name", "title") if not hasattr(item, key)]
    if lacking:
        raise ConfigError(f"method '{name}' lacks {', '.join(lacking)}; see docs/own-method.md")
    return item


def make_method(name: str, settings: dict[str, Any] | None = None) -> Method:
    """The named method with these settings; a wrong key or value names itself and what is allowed."""
    return configured(find_method(name), settings)


def configured(cls: type[Method], settings: dict[str, Any] | None = None) -> Method:
    """A method of that class with these settings."""
    try:
        return checked(cls, settings or {})
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(cls, problem) for problem in error.errors())) from None


def _explain(cls: type[Method], problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"method {cls.name}: " + unknown("setting", key, cls.model_fields)
    return f"method {cls.name}: {key} = {shown(problem['input'])}: {problem['msg'].lower()}"
