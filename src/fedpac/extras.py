"""Libraries that only some commands need: imported where they are used, and named where they are missing."""

import importlib
from typing import Any

from fedpac.errors import FedpacError


def library(name: str, extra: str) -> Any:
    """The module, or an error that names the extra it comes with."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise FedpacError(f"this needs {name}, which is not installed: pip install 'fedpac[{extra}]'") from None
