"""Values as a user gives them, checked without guessing: true is no number, and "1" is a text."""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedpac.errors import ConfigError

Checked = TypeVar("Checked", bound=BaseModel)


def checked(model: type[Checked], values: Mapping[str, Any]) -> Checked:
    """The values as an instance of the model; pydantic's ValidationError where they are none.

    They go by way of JSON, since pydantic is strict there and still takes a list for a tuple and a text for a path.
    """
    try:
        text = json.dumps(values, default=_plain)
    except (RecursionError, TypeError, ValueError) as error:  # too deep, a key that is no text, too many digits
        raise _unusable(error) from None
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        if problem["type"] == "json_invalid":  # too deep for pydantic, or half a surrogate pair
            raise _unusable(problem["msg"]) from None
        raise


def shown(value: Any) -> str:
    """A value in an error message: its repr, cut where it is long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # too deep, or too many digits
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 80 else f"{text[:60]}...{text[-10:]}"


def one_line_lists(toml: str) -> str:
    """TOML with its innermost lists on one line each."""
    return re.sub(r"\[\n([^\[\]]*?),?\n *\]", lambda found: f"[{' '.join(found[1].split())}]", toml)


def _unusable(reason: object) -> ConfigError:
    return ConfigError(f"config: a value is nested too deeply or has an unsupported type: {reason}")


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, and whatever JSON has no form for as text."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else str(value)
