"""What is sent, comes in and is known in a round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedpac import errors
from fedpac.engines.site import Failure, Job, Outcome
from fedpac.errors import RunError
from fedpac.evaluation import Plan
from fedpac.message import Message
from fedpac.methods.base import Which
from fedpac.mods.base import Passage
from fedpac.task import State


@dataclass(frozen=True)
class Score:
    client: int
    which: Which
    accuracy: float
    loss: float
    measured: Mapping[str, float] = field(default_factory=dict)  # what else was asked for: 'test/auroc', ...


@dataclass(frozen=True)
class RoundReport:
    """All that is known about one round."""

    round: int
    chosen: list[int]
    scores: list[Score]  # empty in rounds without evaluation
    bytes_down: int
    bytes_up: int
    seconds: float  # the round's own work, evaluation included
    client_seconds: float  # summed over clients
    peer_weights: list[tuple[int, int, float]] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)  # who was asked and did not answer, and why
    epsilon: float | None = None  # of differential privacy, spent so far by the client that took part most often
    promise: str = ""  # which epsilon that is
    metric: str = "accuracy"  # what the scores' accuracy is: 'r2' where a number is predicted

    @property
    def spent(self) -> str:
        """Epsilon, never without what it means; empty without differential privacy."""
        return "" if self.epsilon is None else f"epsilon {self.epsilon:.2f} ({self.promise})"

    def accuracies(self, which: Which) -> list[float]:
        return [s.accuracy for s in self.scores if s.which == which]

    def measured(self, which: Which, name: str) -> dict[int, float]:
        """One of the other metrics, such as 'validation/loss', of the clients that have it."""
        return {s.client: s.measured[name] for s in self.scores if s.which == which and name in s.measured}


class RoundLostError(RunError):
    """Too few clients answered: the round does not count, and nothing has changed."""

    def __init__(self, round: int, answered: int, needed: int, failed: Sequence[Failure]) -> None:
        self.failed = failed
        reasons = [failure.reason for failure in failed[:3]] + ["..."] * (len(failed) > 3)
        why = "; ".join(reasons) or "no others were selected"
        super().__init__(f"round {round}: {answered} of at least {needed} clients replied ({why})")


@dataclass
class Letters:
    """What clients are sent to learn from, and what they answered, once they did."""

    downs: dict[int, Message]  # as the method sends them
    passages: dict[int, Passage]  # the same on their way through the mods
    jobs: dict[int, Job]
    outcomes: dict[int, Outcome] | None = None


@dataclass
class Opening:
    """Who takes part in a round; and what was asked, if it began while the one before was still to be scored."""

    round: int
    chosen: list[int]
    waves: list[list[int]]
    plan: Plan
    first: Letters | None = None  # of the first wave
    rehearsed: dict[int, Outcome] | None = None
    memory: State | None = None  # what mods remember since then
    seconds: float = 0.0

    @property
    def absentees(self) -> list[int]:
        return sorted(self.plan.personal.difference(self.chosen))


@dataclass
class Tally:
    """What has come in during a round."""

    strict: bool  # the first failure is an error
    scores: list[Score] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0

    def count(self, outcomes: Mapping[int, Outcome], which: Which) -> None:
        for i, outcome in outcomes.items():
            self.seconds += outcome.seconds
            if outcome.error is not None:
                self.fail(outcome.error)
            elif outcome.score is not None:
                self.scores.append(Score(i, which, *outcome.score, outcome.measured))

    def fail(self, failure: Failure) -> None:
        if self.strict:
            raise error_of(failure)
        self.failed.append(failure)


def error_of(failure: Failure) -> Exception:
    """The exception that a failure stands for; a mistake in a method keeps its traceback."""
    if failure.traceback:
        return RuntimeError(f"{failure.reason}\n{failure.traceback}")
    kind = getattr(errors, failure.kind, RunError)
    assert issubclass(kind, errors.FedpacError)
    return kind(failure.reason)


def refusal(outcome: Outcome, reason: str) -> Outcome:
    return Outcome(outcome.client, seconds=outcome.seconds, error=Failure(outcome.client, "refused", reason))
