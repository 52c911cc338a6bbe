"""A method that is being checked, and what checks share."""

import math
from functools import cached_property
from typing import Any

from fedpac.federation import Federation
from fedpac.message import Message
from fedpac.methods import Method, checked_class, configured
from fedpac.testing.tiny import Finished, start_federation, uneven_data
from fedpac.testing.verdicts import difference_of_states, require

ROUNDS = 3


class Trial:
    """A method that is being checked. The plain run that others are compared with is made once."""

    def __init__(self, cls: type[Method], settings: dict[str, Any] | None = None) -> None:
        self.cls = checked_class(cls.__qualname__, cls)
        self.settings = settings or {}
        self.method()  # wrong settings are the user's mistake, and no verdict

    def method(self) -> Method:
        return configured(self.cls, self.settings)

    def start(self, method: Method | None = None, **changes: Any) -> Federation:
        """Two of four clients in a round, all four in the last."""
        how = {"rounds": ROUNDS, "data": uneven_data(), "participation": 0.5, **changes}
        return start_federation(method or self.method(), **how)

    def run(self, method: Method | None = None, **changes: Any) -> Finished:
        federation = self.start(method, **changes)
        with federation.engine:
            return Finished(federation.task, federation, list(federation.rounds()))

    @cached_property
    def plain(self) -> Finished:
        return self.run()


def require_same_states(found: Finished, expected: Finished, where: str) -> None:
    problem = difference_of_states(found.bytes(), expected.bytes())
    require(not problem, f"{where}: {problem}")


def finite(finished: Finished) -> None:
    for score in finished.reports[-1].scores:
        require(math.isfinite(score.loss), f"client {score.client}'s {score.which} model has an infinite test loss")


class unchanged:  # noqa: N801  (used like a function)
    """What is done inside leaves these parts as they are."""

    def __init__(self, otherwise: str, parts: Any) -> None:
        self.otherwise, self.parts = otherwise, dict(parts)

    def __enter__(self) -> None:
        self.before = Message(**self.parts).to_bytes()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            require(Message(**self.parts).to_bytes() == self.before, self.otherwise)
