"""What a method sends: checked, complete, free of samples, and no more than the server needs."""

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fedpac.engines.site import Job
from fedpac.message import Message, Part
from fedpac.replies import accepted
from fedpac.rounds import error_of
from fedpac.server import Server
from fedpac.task import State
from fedpac.testing.engines import Recording
from fedpac.testing.opaque import opened, seal
from fedpac.testing.tiny import INPUTS, Finished, uneven_data
from fedpac.testing.trial import ROUNDS, Trial, require_same_states
from fedpac.testing.verdicts import Violation, require


def fitting_replies(trial: Trial) -> str | None:
    """One round without the federation, which would refuse a reply and end."""
    method, federation = trial.method(), trial.start()
    server, engine = federation.server, federation.engine
    server.round = 1
    downs = {i: method.send(server, i) for i in engine.available()}
    described = {i: method.replies(server, i, down) for i, down in downs.items()}
    replies: dict[int, Message] = {}
    for i, outcome in engine.map([Job("learn", i, 1, down) for i, down in downs.items()]).items():
        if outcome.up is None:
            raise Violation(f"client {i} does not answer")
        replies[i] = outcome.up
    _, refused = accepted(replies, described)
    require(not refused, "; ".join(list(refused.values())[:1]))
    undescribed = any(description is None for description in described.values())
    return "replies() describes nothing: only infinite and NaN values will be refused" if undescribed else None


def _messages(trial: Trial) -> Iterator[tuple[str, Message]]:
    """All that was sent in a run, with its sender."""
    engine = trial.run(engine=Recording).federation.engine
    assert isinstance(engine, Recording)
    for job, up in engine.sent:
        yield f"the server's message to client {job.client} in round {job.round}", job.down
        yield f"the answer of client {job.client} in round {job.round}", up


def messages_survive_bytes(trial: Trial) -> None:
    for whose, message in _messages(trial):
        require(Message.from_bytes(message.to_bytes()) == message, f"{whose} is another one after a way through bytes")


def messages_hold_no_samples(trial: Trial) -> None:
    samples = torch.cat([own.train.tensors()[0] for own in uneven_data()])
    for whose, message in _messages(trial):
        stolen = parts_with_samples(message, samples)
        require(not stolen, f"{whose} holds a training sample in {', '.join(stolen)}")


def parts_with_samples(message: Message, samples: Tensor) -> list[str]:
    """The parts in which INPUTS numbers in a row are one of the samples."""
    found = []
    for name, tensor in message.flat()[0].items():
        if tensor.numel() >= INPUTS:
            rows = tensor.flatten().double().unfold(0, INPUTS, 1)
            if (torch.cdist(rows, samples.double()) < 1e-6).any():
                found.append(f"'{name}'")
    return found


def condensed_replies(trial: Trial) -> str | None:
    """Two halves that were condensed merge to what all replies merge to, up to rounding."""
    method, finished = trial.method(), trial.plain
    server, engine = finished.server, finished.federation.engine
    jobs = [Job("learn", i, ROUNDS + 1, method.send(server, i)) for i in engine.available()]
    replies = {i: outcome.up for i, outcome in trial.start(method).engine.map(jobs).items() if outcome.up is not None}
    half = len(replies) // 2
    some, others = dict(list(replies.items())[:half]), dict(list(replies.items())[half:])
    fewer = {**method.condense(some), **method.condense(others)}
    if fewer.keys() == replies.keys():
        return "condense() keeps them all"
    merged: list[State] = []
    for each in (fewer, replies):
        twin = Server(finished.task, copy.deepcopy(server.state))
        twin.round = ROUNDS + 1
        method.merge(twin, each)
        merged.append(twin.state)
    for name in merged[1]:
        require(_close(merged[0][name], merged[1][name]), f"the server's '{name}' is not that of all replies")
    return None


def _close(one: Part, other: Part) -> bool:
    mine, theirs = (Message(part=part).flat() for part in (one, other))
    return (
        mine[0].keys() == theirs[0].keys()
        and all(torch.allclose(tensor, theirs[0][name], rtol=1e-4, atol=1e-6) for name, tensor in mine[0].items())
        and all(math.isclose(number, theirs[1][name], rel_tol=1e-4) for name, number in mine[1].items())
    )


def sums_suffice(trial: Trial) -> str | None:
    """The plain run once more, with the parts that sums() names in envelopes that only clients can open."""
    method, federation = trial.method(), trial.start()
    sums = method.sums()
    if not sums:
        return "sums() claims none: the server must be able to read all replies"
    server, engine, task = federation.server, federation.engine, federation.task
    for round in range(1, ROUNDS + 1):
        server.round = round
        for wave in method.waves(federation.sampler.choose(task, round, engine.available())):
            downs = {i: method.send(server, i) for i in wave}
            jobs = [Job("learn", i, round, Message(**opened(down))) for i, down in downs.items()]
            replies: dict[int, Message] = {}
            for i, outcome in engine.map(jobs).items():
                if outcome.error is not None:
                    raise error_of(outcome.error)
                assert outcome.up is not None
                replies[i] = seal(outcome.up, sums)
            fitting, refused = accepted(replies, {i: method.replies(server, i, downs[i]) for i in replies})
            require(not refused, "; ".join(list(refused.values())[:1]))
            method.merge(server, fitting)
    server.state = opened(server.state)
    require_same_states(Finished(task, federation, []), trial.plain, "opened at the end")
    return f"the server never reads {', '.join(sums)}"
