"""Which round to take, and when to stop: decided on validation data, so that test data are looked at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedpac.metrics import METRICS


@dataclass
class Selection:
    """Follows one number over the evaluated rounds.

    by         the metric; equal values go to the earlier round
    patience   stop after so many evaluations without a better one; unset, never
    """

    by: str
    patience: int | None = None
    seen: dict[int, float] = field(default_factory=dict)  # round -> mean over clients, in the order of rounds

    @property
    def key(self) -> str:
        return f"validation/{self.by}"

    def see(self, round: int, values: Mapping[int, float]) -> None:
        """values: of the clients that have one"""
        if values:
            self.seen[round] = sum(values.values()) / len(values)

    @property
    def best(self) -> int | None:
        """The round to take."""
        sign = 1 if METRICS[self.by].higher else -1
        return max(self.seen, key=lambda t: (sign * self.seen[t], -t), default=None)

    @property
    def exhausted(self) -> bool:
        return self.patience is not None and sum(t > (self.best or 0) for t in self.seen) >= self.patience
