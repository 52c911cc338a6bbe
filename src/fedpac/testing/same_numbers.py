"""The same numbers everywhere: nothing is remembered but in the two states, and looking leaves no trace."""

import copy
import pickle
import re
from typing import Any

from fedpac.engines.site import Job, audience
from fedpac.evaluation import Evaluation
from fedpac.message import Message
from fedpac.methods import Method
from fedpac.task import State
from fedpac.testing.tiny import EngineFactory, in_pieces, uneven_data, visit
from fedpac.testing.trial import ROUNDS, Trial, require_same_states, unchanged
from fedpac.testing.verdicts import Violation, require, require_same


def settings_hold(trial: Trial) -> None:
    config = trial.cls.model_config
    require(config.get("frozen") is True, "its model_config says that settings may change during a run")
    require(config.get("extra") == "forbid", "its model_config lets settings pass that it does not have")


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


def nothing_is_changed_in_place(trial: Trial) -> None:
    method, finished = trial.method(), trial.run()
    server, task = finished.server, finished.task
    server.state = copy.deepcopy(server.state)
    replies: dict[int, Message] = {}
    for i in range(task.clients):
        with unchanged("send() changes the server's state", server.state):
            sent = method.send(server, i)
        down, state = Message(**copy.deepcopy(dict(sent))), copy.deepcopy(finished.states.get(i, {}))
        client = visit(task, uneven_data(), i, ROUNDS + 1, dict(state))
        with (
            unchanged("local() changes the message it gets", down),
            unchanged("local() changes the tensors of the client's state in place", state),
        ):
            replies[i] = method.local(client, down)
        with unchanged("received() or personal() changes a message", {**down, **_prefixed(replies[i])}):
            method.received(audience(client), down)
            method.personal(audience(client), down, replies[i])
    with unchanged("merge() changes the replies", {f"{i}.{k}": v for i, up in replies.items() for k, v in up.items()}):
        for wave in method.waves(list(replies)):
            method.merge(server, {i: replies[i] for i in wave})


def _prefixed(up: Message) -> State:
    return {f"up.{name}": part for name, part in up.items()}
