"""Local-only: the baseline without any collaboration."""

from collections.abc import Mapping
from typing import ClassVar

from fedpac.message import Message
from fedpac.methods.base import Which
from fedpac.methods.fedavg import FedAvg
from fedpac.models import Section
from fedpac.mods.dp import Kind
from fedpac.server import Server


class Local(FedAvg):
    """Every client keeps training a model of its own; nothing is exchanged.

    w_i <- E epochs of SGD on F_i from w_i
    """

    name = "local"
    title = "Local-only"
    family = "no collaboration"
    reported: ClassVar[Which] = "personal"
    averages: ClassVar[bool] = False
    shared: ClassVar[Section] = "none"

    def sums(self) -> tuple[str, ...]:
        return ()

    def protects(self) -> Mapping[str, Kind]:
        return {"w": "empty", "n": "public"}

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        """There is nothing to merge."""
