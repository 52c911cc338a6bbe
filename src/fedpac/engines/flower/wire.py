"""How requests and answers travel as Flower messages: a header as JSON, and the bytes of a message of ours."""

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

import torch
from flwr.app import ConfigRecord, RecordDict
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedpac import errors
from fedpac.engines.site import Failure, Job, Kind, Outcome
from fedpac.errors import FedpacError, MessageError
from fedpac.message import Message

CHUNK = 4 * 2**20  # bytes: Flower moves the parts of a large message side by side
HEADER = "fedpac"
PROTOCOL: Literal[3] = 3


def printable(text: str) -> str:
    """Without what would move a terminal's cursor: it was written by somebody else."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


Said: TypeAlias = Annotated[str, Field(max_length=10_000), AfterValidator(printable)]
Errand: TypeAlias = Kind | Literal["hello", "finish", "welcome"]


class Spec(BaseModel):
    """What a site must know to build the task that the server has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    federation: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]  # names the run: states of two must not mix
    config: Annotated[str, Field(max_length=32_768)]  # TOML
    sites: tuple[str, ...]  # client i is sites[i]
    newcomers: tuple[str, ...] = ()  # who gets a model and takes no part; their numbers go on from there
    left: tuple[str, ...] = ()  # sites that are not asked any more
    classes: int
    shape: tuple[int, ...]  # of one sample
    dtype: Literal["float16", "float32", "float64", "int64"] = "float32"
    fill: int = 0  # of tokens, the largest

    @property
    def names(self) -> tuple[str, ...]:
        return self.sites + self.newcomers

    @property
    def sample(self) -> torch.Tensor:
        return torch.full(self.shape, self.fill, dtype=getattr(torch, self.dtype))


class Request(BaseModel):
    """What the server asks of a site.

    hello    who are you, and how many samples have you got?
    finish   the run is over: make your model of this last message and keep it
    welcome  the same for a newcomer
    Every other kind is a job's.

    received     score the model as received first, as that of this round
    own_bytes    of the message that it is received in, which then comes first; if it is the job's own, there are none
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: Literal[3] = PROTOCOL
    kind: Errand
    client: int
    round: int
    received: Annotated[int, Field(ge=0)] | None = None
    own_bytes: Annotated[int, Field(ge=0)] = 0
    since: Annotated[int, Field(ge=0)] | None = None  # the last round in which this client's answer counted, if known
    selected: Annotated[int, Field(ge=1)] | None = None  # the round that validation data have chosen so far
    spec: Spec


class Problem(BaseModel):
    """A failure, without the traceback: that is the site's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: Said
    kind: Said


class Done(BaseModel):
    """What came of a job."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")  # a loss may be infinite

    score: tuple[float, float] | None = None
    measured: Annotated[dict[str, float], Field(max_length=100_000)] = {}
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    problem: Problem | None = None


class Answer(Done):
    protocol: Literal[3] = PROTOCOL
    site: Said
    kind: Errand
    client: int
    round: int
    learned: bool = False  # whether a message of the method's follows
    received: Done | None = None  # of the model as received, where that was asked for
    train: Annotated[int, Field(ge=0)] = 0  # samples, for hello
    test: Annotated[int, Field(ge=0)] = 0


def pack(header: Request | Answer, body: bytes = b"") -> RecordDict:
    # the beginning goes with the header: Flower asks for every record by itself
    records = {HEADER: ConfigRecord({"header": header.model_dump_json(), "bytes": body[:CHUNK]})}
    for n, at in enumerate(range(CHUNK, len(body), CHUNK)):
        records[f"{n:06}"] = ConfigRecord({"bytes": body[at : at + CHUNK]})
    return RecordDict(records)  # type: ignore[arg-type]


def unpack(content: RecordDict, kind: type[Any]) -> tuple[Any, bytes]:
    """Header and body; an error if they are not what the other end of this protocol sends."""
    try:
        records = content.config_records
        header = kind.model_validate_json(str(records[HEADER]["header"]))
        parts = [records[name]["bytes"] for name in (HEADER, *sorted(set(records) - {HEADER}))]
        return header, b"".join(parts)  # type: ignore[arg-type]
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise MessageError(f"a Flower message with a header that does not fit: {where}: {problem['msg']}") from None
    except (KeyError, TypeError) as error:
        raise MessageError(f"a Flower message that is not fedpac's: {error!r}") from None


def request_bytes(job: Job) -> tuple[dict[str, int], bytes]:
    """What a request says of a job that has another before it, and the messages of both: the same one travels once."""
    body = job.down.to_bytes()
    if job.first is None:
        return {}, body
    own = job.first.down.to_bytes()
    if own == body:
        return {"received": job.first.round}, body
    return {"received": job.first.round, "own_bytes": len(own)}, own + body


def job_of(request: Request, kind: Kind, body: bytes) -> Job:
    down = Message.from_bytes(body[request.own_bytes :])
    if request.received is None:
        return Job(kind, request.client, request.round, down)
    received = Message.from_bytes(body[: request.own_bytes]) if request.own_bytes else down
    first = Job("receive", request.client, request.received, received)
    return Job(kind, request.client, request.round, down, first)


def answer_of(request: Request, site: str, outcome: Outcome) -> RecordDict:
    header = Answer(
        site=site, kind=request.kind, client=outcome.client, round=request.round, learned=outcome.up is not None,
        received=outcome.first and Done(**_done(outcome.first)), **_done(outcome),
    )  # fmt: skip
    return pack(header, b"" if outcome.up is None else outcome.up.to_bytes())


def _done(outcome: Outcome) -> dict[str, Any]:
    problem = outcome.error and Problem(reason=outcome.error.reason[:10_000], kind=outcome.error.kind)
    return {"score": outcome.score, "measured": outcome.measured, "seconds": outcome.seconds, "problem": problem}


def outcome_of(answer: Answer, body: bytes) -> Outcome:
    first = None if answer.received is None else _outcome(answer.client, answer.received)
    outcome = _outcome(answer.client, answer)
    up = Message.from_bytes(body) if answer.learned and outcome.error is None else None
    return replace(outcome, up=up, first=first)


def _outcome(client: int, done: Done) -> Outcome:
    if done.problem is not None:
        return Outcome(client, seconds=done.seconds, error=failure_of(client, done.problem))
    return Outcome(client, None, done.score, done.seconds, measured=done.measured)


def failure_of(client: int, problem: Problem) -> Failure:
    kind = getattr(errors, problem.kind, None)
    known = isinstance(kind, type) and issubclass(kind, FedpacError)  # a site may name anything
    return Failure(client, "error", problem.reason, problem.kind if known else "")
