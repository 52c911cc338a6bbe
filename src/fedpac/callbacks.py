"""Callbacks: who is told of every round, and may end the training. A function that takes the report will do.

    def show(report):
        print(report.round, report.accuracies("received"))

    fedpac.fit(model, clients, callbacks=[show, EarlyStopping(patience=5), Log("rounds.jsonl")])

A callback that returns True, or raises, ends the training after that round, and what was trained is kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fedpac.errors import ConfigError, unknown
from fedpac.methods.base import Which
from fedpac.metrics import METRICS
from fedpac.rounds import RoundReport
from fedpac.selection import Selection


@dataclass(frozen=True)
class Beginning:
    """What is known before the first round of a session."""

    method: str  # its title
    reported: Which
    clients: int
    rounds: int
    after_round: int = 0  # rounds that were done in earlier sessions
    settings: Mapping[str, Any] = field(default_factory=dict)  # by name, such as 'training.lr'


class Callback:
    """Override what you need."""

    def begin(self, beginning: Beginning) -> None:
        """Before the first round of a session."""

    def see(self, report: RoundReport) -> bool | None:
        """After every round. True ends the training."""

    def end(self) -> None:
        """After the last round, whatever ended the session."""


class Calls(Callback):
    """A function as a callback."""

    def __init__(self, function: Callable[[RoundReport], object]) -> None:
        self.function = function

    def see(self, report: RoundReport) -> bool | None:
        return self.function(report) is True


Given: TypeAlias = Callback | Callable[[RoundReport], object]


@dataclass(frozen=True)
class Stopped:
    """Why the training ended before its last round."""

    round: int
    by: str  # the callback's name
    error: Exception | None = None  # if it failed

    def __str__(self) -> str:
        if self.error is None:
            return f"stopped after round {self.round} by {self.by}"
        return f"stopped after round {self.round}: {self.by} failed ({type(self.error).__name__}: {self.error})"


class Callbacks:
    """All of a session's callbacks. One that fails is asked no more, and the training ends after that round."""

    def __init__(self, given: Sequence[Given] = ()) -> None:
        if not isinstance(given, Sequence):
            raise ConfigError(f"callbacks is a {type(given).__name__}; expected a list")
        self.each = [_callback(one) for one in given]
        self.round = 0
        self.stopped: Stopped | None = None

    def begin(self, beginning: Beginning) -> None:
        """A callback that fails here fails before anything was trained: its error is the user's."""
        for callback in self.each:
            callback.begin(beginning)

    def see(self, report: RoundReport) -> bool:
        """Whether to end the training. Every callback sees the round, also after one that wants to stop."""
        self.round = report.round
        for callback in self.each:
            try:
                if callback.see(report):
                    self.stopped = self.stopped or Stopped(self.round, _name(callback))
            except Exception as error:
                self._fail(callback, error)
        return self.stopped is not None

    @contextmanager
    def ending(self) -> Iterator[None]:
        """All callbacks are told of the end, whatever it is."""
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        for callback in self.each:
            try:
                callback.end()
            except Exception as error:
                self._fail(callback, error)

    def _fail(self, callback: Callback, error: Exception) -> None:
        if self.stopped is None or self.stopped.error is None:
            self.stopped = Stopped(self.round, _name(callback), error)


def _callback(given: object) -> Callback:
    if isinstance(given, Callback):
        return given
    if isinstance(given, type) or not callable(given):
        what = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise ConfigError(f"callbacks has {what}; expected a Callback, or a function that takes a round's report")
    return Calls(given)


def _name(callback: Callback) -> str:
    return (
        getattr(callback.function, "__name__", "a function") if isinstance(callback, Calls) else type(callback).__name__
    )


class EarlyStopping(Callback):
    """Stop training after `patience` evaluations in which the mean over clients on validation data has not improved.

    by   'accuracy', 'loss', or another metric that is measured; needs validation_share. Unset, accuracy, or R^2 where
         a number is predicted
    """

    def __init__(self, by: str | None = None, patience: int = 5) -> None:
        if by is not None and by not in METRICS:
            raise ConfigError("EarlyStopping: " + unknown("metric", by, METRICS))
        if patience < 1:
            raise ConfigError(f"EarlyStopping: patience = {patience}; expected 1 or more")
        self.by, self.selection = by, Selection(by or "accuracy", patience)
        self.which: Which = "received"

    def begin(self, beginning: Beginning) -> None:
        self.which = beginning.reported

    def see(self, report: RoundReport) -> bool | None:
        if any(score.which == self.which for score in report.scores):
            self.selection.by = self.by or report.metric
            found = report.measured(self.which, self.selection.key)
            if not found:
                raise ConfigError(f"'{self.selection.key}' is not measured; set validation_share, and metrics")
            self.selection.see(report.round, found)
        return self.selection.exhausted
