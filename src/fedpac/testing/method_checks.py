"""What every method owes to every engine, to a stopped run and to its clients' privacy, as checks by name."""

import copy
import math
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from fedpac.engines import ProcessEngine, SerialEngine
from fedpac.engines.site import Job, Site, audience
from fedpac.errors import ConfigError
from fedpac.evaluation import Evaluation
from fedpac.federation import Federation, error_of
from fedpac.message import Message, Part
from fedpac.methods import Method, checked_class, configured
from fedpac.newcomers import Reception
from fedpac.replies import accepted
from fedpac.server import Server
from fedpac.task import State
from fedpac.testing.engines import Apart, Moving, Recording, Reversed, Shuffled
from fedpac.testing.opaque import opened, seal
from fedpac.testing.tiny import (
    INPUTS,
    EngineFactory,
    Finished,
    in_pieces,
    number_data,
    number_model,
    run_federation,
    start_federation,
    tiny_data,
    tiny_model,
    uneven_data,
    visit,
)  # fmt: skip
from fedpac.testing.verdicts import Check, Verdict, Violation, difference_of_states, judged, require, require_same
from fedpac.training import evaluate

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


def check_method(cls: type[Method], settings: dict[str, Any] | None = None) -> list[Verdict]:
    """Everything that a method of yours owes, one verdict each: `all(v.passed for v in check_method(MyMethod))`."""
    return list(examine(cls, settings))


def examine(cls: type[Method], settings: dict[str, Any] | None = None) -> Iterator[Verdict]:
    """The verdicts of check_method, as they come."""
    return judged(METHOD_CHECKS, Trial(cls, settings), cls)


# --- the plain run -----------------------------------------------------------------------------------------------


def plain_run(trial: Trial) -> None:
    losses = [score.loss for report in trial.plain.reports for score in report.scores]
    require(all(map(math.isfinite, losses)), "a test loss is infinite")


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


def settings_hold(trial: Trial) -> None:
    config = trial.cls.model_config
    require(config.get("frozen") is True, "its model_config says that settings may change during a run")
    require(config.get("extra") == "forbid", "its model_config lets settings pass that it does not have")


# --- nothing but the two states is remembered --------------------------------------------------------------------


def stores_nothing(trial: Trial) -> None:
    method = trial.method()
    before = _belongings(method)
    try:
        trial.run(method)
    except Exception as error:
        if found := re.search(r"'(\w+)' is set on the method, which is frozen", str(error)):
            raise Violation(f"it sets '{found[1]}' on itself") from None
    after = _belongings(method)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    require(not changed, f"a run changes {', '.join(changed)} of the method")


def _belongings(method: Method) -> dict[str, bytes]:
    """All that hangs on the method or its class, but functions."""
    found = {**vars(method), **(method.__pydantic_private__ or {})}
    for cls in type(method).__mro__:
        if issubclass(cls, Method):
            own = {key: value for key, value in vars(cls).items() if not key.startswith(("__", "_abc_", "model_"))}
            found |= {key: value for key, value in own.items() if not callable(value) and key not in found}
    return {key: _frozen(value) for key, value in found.items()}


def _frozen(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # a property or a descriptor: nothing is stored in it
        return repr(value).encode()


def same_on(engine: EngineFactory, where: str) -> Any:
    def look(trial: Trial) -> None:
        require_same(trial.run(engine=engine), trial.plain, where)

    return look


def stops_and_goes_on(trial: Trial) -> None:
    require_same(in_pieces(trial.start), trial.plain, "a run made anew from bytes in every round")


def looking_changes_nothing(trial: Trial) -> None:
    """With evaluation in the last round only that round is the same, and one look more leaves no trace."""
    method = trial.method()
    blind = trial.run(method, evaluation=Evaluation(ROUNDS))
    require(blind.reports[-1].scores == trial.plain.reports[-1].scores, "scores depend on earlier evaluations")
    require_same_states(blind, trial.plain, "without evaluation")
    engine, server = blind.federation.engine, blind.server
    for kind in ("receive", "rehearse"):
        engine.map([Job(kind, i, ROUNDS, method.send(server, i)) for i in engine.available()])
        require_same_states(blind, trial.plain, f"after one more evaluation ({kind})")


def require_same_states(found: Finished, expected: Finished, where: str) -> None:
    problem = difference_of_states(found.bytes(), expected.bytes())
    require(not problem, f"{where}: {problem}")


# --- messages ----------------------------------------------------------------------------------------------------


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


def nothing_is_changed_in_place(trial: Trial) -> None:
    method, finished = trial.method(), trial.run()
    server, task = finished.server, finished.task
    server.state = copy.deepcopy(server.state)
    replies: dict[int, Message] = {}
    for i in range(task.clients):
        with _unchanged("send() changes the server's state", server.state):
            sent = method.send(server, i)
        down, state = Message(**copy.deepcopy(dict(sent))), copy.deepcopy(finished.states.get(i, {}))
        client = visit(task, uneven_data(), i, ROUNDS + 1, dict(state))
        with (
            _unchanged("local() changes the message it gets", down),
            _unchanged("local() changes the tensors of the client's state in place", state),
        ):
            replies[i] = method.local(client, down)
        with _unchanged("received() or personal() changes a message", {**down, **_prefixed(replies[i])}):
            method.received(audience(client), down)
            method.personal(audience(client), down, replies[i])
    with _unchanged("merge() changes the replies", {f"{i}.{k}": v for i, up in replies.items() for k, v in up.items()}):
        for wave in method.waves(list(replies)):
            method.merge(server, {i: replies[i] for i in wave})


def _prefixed(up: Message) -> State:
    return {f"up.{name}": part for name, part in up.items()}


class _unchanged:  # noqa: N801  (used like a function)
    """What is done inside leaves these parts as they are."""

    def __init__(self, otherwise: str, parts: Any) -> None:
        self.otherwise, self.parts = otherwise, dict(parts)

    def __enter__(self) -> None:
        self.before = Message(**self.parts).to_bytes()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            require(Message(**self.parts).to_bytes() == self.before, self.otherwise)


# --- models and data of all kinds --------------------------------------------------------------------------------


def batch_norm_and_dropout(trial: Trial) -> None:
    runs: list[Finished] = []
    before = torch.get_rng_state()
    try:
        for seed, engine in ((1, SerialEngine), (2, Reversed)):
            torch.manual_seed(seed)
            runs.append(trial.run(model=tiny_model("norm"), engine=engine))
    finally:
        torch.set_rng_state(before)
    require_same(runs[1], runs[0], "with another global seed of torch and another order of clients")
    for name, part in runs[0].server.state.items():
        if isinstance(part, dict) and "body.1.num_batches_tracked" in part:
            require(part["body.1.num_batches_tracked"].dtype == torch.int64, f"'{name}' makes a mean of a counter")
            require(bool((part["body.1.running_var"] > 0).all()), f"'{name}' has a running variance of 0 or less")


def trains_a_model(kind: str) -> Any:
    def look(trial: Trial) -> None:
        finite(trial.run(model=tiny_model(kind), rounds=2))

    return look


def one_sample_each(trial: Trial) -> None:
    finite(trial.run(data=tiny_data((1, 1, 1)), rounds=2))


def finite(finished: Finished) -> None:
    for score in finished.reports[-1].scores:
        require(math.isfinite(score.loss), f"client {score.client}'s {score.which} model has an infinite test loss")


def training_helps(trial: Trial) -> None:
    method = trial.method()
    data = tiny_data((16, 16, 16), [[0, 1], [1, 2], [2, 3]], tests=20)
    accuracies = run_federation(method, rounds=6, data=data, epochs=4).accuracies(method.reported)
    mean = sum(accuracies) / len(accuracies)
    require(mean > 0.5, f"its {method.reported} models are right in {mean:.0%} of all cases; a guess is in 25 %")


def another_recipe(trial: Trial) -> str | None:
    """AdamW along a cosine, with everything else that a recipe can say: here and in workers, and not in vain."""
    recipe: dict[str, Any] = {
        "optimizer": "adamw", "schedule": "cosine", "warmup": 2, "clip": 1.0, "label_smoothing": 0.1,
        "class_weights": "balanced",
    }  # fmt: skip
    here = trial.run(**recipe)
    finite(here)
    elsewhere = trial.run(engine=partial(ProcessEngine, workers=2), **recipe)
    require_same(elsewhere, here, "in two worker processes")
    ignored = here.scores() == trial.plain.scores()
    return "it does not train by train(): the recipe's optimizer, schedule and loss have no effect" if ignored else None


# --- clients that never took part ---------------------------------------------------------------------------------


def welcomes_newcomers(trial: Trial) -> str | None:
    method, finished = trial.method(), trial.plain
    gets, client = method.newcomer(), finished.task.clients
    if not gets.labelled:
        return "newcomer() promises nothing: a newcomer gets no model until it takes part"
    own = tiny_data((6,), [[0, 1]])[0]
    nobody = replace(own, train=replace(own.train, index=own.train.index[:0]))
    for data in [own, nobody] if gets.without else [own]:
        site = Site(finished.task, method, {client: data})
        with _unchanged("welcome() changes the server's state", finished.server.state):
            down = Reception(method, finished.server).welcome(client, len(data.train), site.work)
        require(Message.from_bytes(down.to_bytes()) == down, "what welcome() gives does not survive bytes")
        loss = evaluate(site.model_of(client, "new", ROUNDS + 1, down), *data.test.tensors())[1]
        require(math.isfinite(loss), f"with {len(data.train)} samples its model has an infinite test loss")
        require(not site.store.newest(client), "something of a newcomer is kept")
    return None


def predicts_numbers(trial: Trial) -> str | None:
    method = trial.method()
    how: dict[str, Any] = {"data": number_data(), "model": number_model(), "classes": 0, "participation": 1.0}
    if method.needs_classes:
        try:
            trial.start(method, **how)
        except ConfigError:
            return "its rule needs classes: it refuses to predict numbers"
        raise Violation("needs_classes is true, but it begins to predict numbers")
    finished = trial.run(method, **how, rounds=5, lr=0.02, epochs=5)
    finite(finished)
    first, last = (
        sum(score.loss for score in report.scores if score.which == method.reported)
        for report in (finished.reports[0], finished.reports[-1])
    )
    values = finished.accuracies(method.reported)
    explained = sum(values) / len(values)
    learned = explained > 0.2 or last < first  # one may be done after the first round
    require(learned, f"its {method.reported} models explain {explained:.0%} of the variance, and do not get better")
    return None


# --- what the server may do with replies -------------------------------------------------------------------------


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


SAME = "the same numbers to the last bit; nothing may depend on who is visited when and where, or remembered elsewhere "
SAME += "than in client.state and server.state"

METHOD_CHECKS: tuple[Check[Trial], ...] = (
    Check("a plain run", "three rounds, four clients, every reply accepted, every loss a number", plain_run),
    Check(
        "replies fit their description",
        "replies() describes exactly what local() answers: its parts, shapes, dtypes and ranges",
        fitting_replies,
        alone=True,
    ),
    Check(
        "nothing stored on the method",
        "what clients must remember is in client.state, what the server must remember in server.state",
        stores_nothing,
        alone=True,
    ),
    Check(
        "settings are fixed",
        "leave model_config as Method has it: frozen=True, extra='forbid'",
        settings_hold,
        alone=True,
    ),
    Check("clients in reverse order", SAME, same_on(Reversed, "last client first")),
    Check("clients in any order", SAME, same_on(Shuffled, "clients shuffled")),
    Check("one worker process", SAME, same_on(partial(ProcessEngine, workers=1), "in a worker process")),
    Check("two worker processes", SAME, same_on(partial(ProcessEngine, workers=2), "in two worker processes")),
    Check("here, then in workers", SAME, same_on(partial(Moving, workers=2), "first here, then in workers")),
    Check("sites that get only bytes", SAME, same_on(Apart, "at sites of their own")),
    Check(
        "stopped after every round",
        "client.state and server.state hold all that the next round needs",
        stops_and_goes_on,
    ),
    Check(
        "looking changes nothing",
        "received() and personal() only look: they give a model and leave everything as it was",
        looking_changes_nothing,
    ),
    Check(
        "messages survive bytes",
        "messages of numbers, tensors and weights by name; no '/' in a name",
        messages_survive_bytes,
    ),
    Check("messages hold no samples", "training data stay with their client", messages_hold_no_samples),
    Check(
        "nothing changed in place",
        "new tensors instead of changed ones (w + d, not w.add_(d)): others hold the same",
        nothing_is_changed_in_place,
    ),
    Check(
        "batch norm and dropout",
        "random choices from client.stream() or server.stream(), never torch's global one; buffers travel with weights",
        batch_norm_and_dropout,
    ),
    Check("a body without weights", "it works with a model whose body has no weights", trains_a_model("linear")),
    Check("a head without weights", "it works with a model whose head has no weights", trains_a_model("headless")),
    Check("clients with one sample", "a client may have a single sample", one_sample_each),
    Check("another recipe", "any optimizer, schedule and loss of the recipe works", another_recipe),
    Check("newcomers", "what newcomer() promises, welcome() and arrival() give; nothing is kept", welcomes_newcomers),
    Check(
        "numbers instead of classes",
        "it predicts numbers by the squared error (batch.loss), or says needs_classes = True",
        predicts_numbers,
    ),
    Check("training helps", "on classes far apart, more than half of all predictions are right", training_helps),
    Check(
        "condensed replies",
        "merge(condense(some) + condense(others)) gives what merge(all) gives",
        condensed_replies,
    ),
    Check(
        "sums suffice",
        "merge() takes nothing but weighted sums (fedpac.weights) of the parts that sums() names",
        sums_suffice,
    ),
)
