"""A check, the verdict it comes to, and in which words."""

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from fedpac.errors import FedpacError
from fedpac.message import Message
from fedpac.rounds import RoundReport
from fedpac.testing.tiny import Finished

Subject = TypeVar("Subject")
Result: TypeAlias = Literal["passed", "failed", "not reached"]


class Violation(Exception):  # noqa: N818  (it is what was found, not a mistake of the user's)
    """What a check found wrong."""


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)


@dataclass(frozen=True)
class Verdict:
    """What came of one check.

    found     what went wrong; where it passed, a remark if there is any
    right     what would be right, where it failed
    """

    name: str
    result: Result
    found: str = ""
    right: str = ""

    @property
    def passed(self) -> bool:
        return self.result == "passed"

    def __str__(self) -> str:
        return ": ".join(filter(None, [f"{self.name}: {self.result}", self.found, self.right]))


@dataclass(frozen=True)
class Check(Generic[Subject]):
    """One thing that a method or an engine owes.

    look      returns a remark or nothing; whatever it raises is what went wrong
    alone     says something even where the first check of all has failed
    """

    name: str
    right: str
    look: Callable[[Subject], str | None]
    alone: bool = False

    def judge(self, subject: Subject, code: object = None) -> Verdict:
        """The verdict; `code` is the class or function whose lines are named where they raised an error."""
        try:
            return Verdict(self.name, "passed", self.look(subject) or "")
        except Exception as error:
            return Verdict(self.name, "failed", in_words(error, code), self.right)


def judged(checks: Sequence[Check[Subject]], subject: Subject, code: object = None) -> Iterator[Verdict]:
    """All verdicts in turn. Where the first check fails, only those are made that say something of their own."""
    first = checks[0].judge(subject, code)
    yield first
    for check in checks[1:]:
        if first.passed or check.alone:
            yield check.judge(subject, code)
        else:
            yield Verdict(check.name, "not reached", f"'{first.name}' fails already")


def in_words(error: Exception, code: object = None) -> str:
    """One line: what was wrong, and the line of the user's code that it came from."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, Violation | FedpacError):
        return text
    said = text if re.match(r"client \d+, round \d+: ", text) else f"{type(error).__name__}: {text}"
    try:
        file = inspect.getsourcefile(code)  # type: ignore[arg-type]  # whatever has none raises a TypeError
    except (OSError, TypeError):  # of a class in a notebook, or of none
        return said
    # a client's error comes with the traceback of the process it was raised in, as text
    lines = re.findall(r'File "(.+?)", line (\d+)', "".join(traceback.format_exception(error)))
    own = [line for path, line in lines if path == file]
    return f"{said} (line {own[-1]} of {file})" if own else said


# --- how two runs differ -----------------------------------------------------------------------------------------

MEASURED = {
    "chosen": "the clients that take part",
    "bytes_down": "the bytes sent to clients",
    "bytes_up": "the bytes sent to the server",
    "peer_weights": "the weights between peers",
}


def require_same(found: Finished, expected: Finished, where: str) -> None:
    """The two runs are the same to the last bit; `where` says what is different about the first."""
    if problem := difference(found, expected):
        raise Violation(f"{where}: {problem}")


def difference(found: Finished, expected: Finished) -> str:
    """Where two runs part, if they do: in what was measured, or in what they leave."""
    require(len(found.reports) == len(expected.reports), f"{len(found.reports)} rounds, not {len(expected.reports)}")
    for one, other in zip(found.reports, expected.reports, strict=True):
        if problem := _difference_of_rounds(one, other):
            return f"round {one.round}: {problem}"
    return difference_of_states(found.bytes(), expected.bytes())


def _difference_of_rounds(one: RoundReport, other: RoundReport) -> str:
    for key, words in MEASURED.items():
        if getattr(one, key) != getattr(other, key):
            return f"{words} are not the same"
    mine, theirs = ({(s.which, s.client): s for s in report.scores} for report in (one, other))
    if mine.keys() != theirs.keys():
        return f"{len(mine)} models are scored, not {len(theirs)}"
    for (which, client), score in mine.items():
        if score != theirs[which, client]:
            return f"client {client}'s {which} test loss is {score.loss!r}, not {theirs[which, client].loss!r}"
    return ""


def difference_of_states(found: dict[str, bytes], expected: dict[str, bytes]) -> str:
    if found.keys() != expected.keys():
        return f"states are kept of {', '.join(found)}, not of {', '.join(expected)}"
    for who, data in found.items():
        if data != expected[who]:
            mine, theirs = Message.from_bytes(data), Message.from_bytes(expected[who])
            parts = [name for name in {**mine, **theirs} if _part(mine, name) != _part(theirs, name)]
            whose = "the server" if who == "server" else who
            return f"the state of {whose} is not the same: {', '.join(parts)}"
    return ""


def _part(message: Message, name: str) -> Any:
    return Message(part=message[name]).to_bytes() if name in message else None
