"""Values as a user gives them, checked without guessing: true is no number, and "1" is a text."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

Checked = TypeVar("Checked", bound=BaseModel)


def checked(model: type[Checked], values: Mapping[str, Any]) -> Checked:
    """The values as an instance of the model; pydantic's ValidationError where they are none.

    They go by way of JSON, since pydantic is strict there and still takes a list for a tuple and a text for a path.
    """
    return model.model_validate_json(json.dumps(values, default=_plain), strict=True)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, and whatever JSON has no form for as text."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else str(value)
