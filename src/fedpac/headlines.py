"""The one number that models are judged by, as people read it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Headline:
    """How people read what models are judged by: accuracy in per cent, R² as it is."""

    title: str
    factor: int
    unit: str
    decimals: int  # beside those of a percentage
    least: float

    def show(self, value: float, digits: int = 2) -> str:
        return f"{self.factor * value:.{digits + self.decimals}f}"

    def with_unit(self, value: float, digits: int = 2) -> str:
        return f"{self.show(value, digits)} {self.unit}".rstrip() if self.factor > 1 else self.show(value, digits)

    @property
    def label(self) -> str:
        """Of an axis or a column."""
        return f"{self.title} ({self.unit})" if self.factor > 1 else self.title


HEADLINES = {"accuracy": Headline("accuracy", 100, "%", 0, 0.0), "r2": Headline("R²", 1, "R²", 2, -math.inf)}
