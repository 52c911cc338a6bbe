"""A mod sees every message at both ends of the wire, and its answer on the way back.

    def at_server(self, message, context):      # what goes to a client, and what comes back from it
        answer = yield packed(message)          # `yield` passes the message on and brings the answer
        return unpacked(answer)

    def at_client(self, message, context):      # what comes from the server, and what goes back to it
        answer = yield unpacked(message)
        return packed(answer)

It is the (message, context, next) of other frameworks with `yield` for `next`, so that a server can have a thousand
messages on their way at once. Where no answer is wanted (a model is only scored) the second half is never run.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fedpac.errors import MessageError
from fedpac.message import Message, Part

Way: TypeAlias = Generator[Message, Message, Message]


@dataclass(frozen=True)
class Context:
    """Whose message it is. `state` is what is remembered between rounds: at the client's end by the client, at the
    server's end by the server, for all clients."""

    client: int
    round: int
    state: dict[str, Part] = field(default_factory=dict)


class Mod(ABC):
    """Listed first, nearest to the method; listed last, nearest to the wire."""

    @abstractmethod
    def at_server(self, message: Message, context: Context) -> Way: ...

    @abstractmethod
    def at_client(self, message: Message, context: Context) -> Way: ...

    def merged(self, samples: Mapping[int, float], memory: dict[str, Part]) -> None:  # noqa: B027
        """The server has merged the replies of these clients, who said they have so many samples."""

    def restored(self, part: Part) -> Part:
        """A part of the server's state, as the server has it, from what a checkpoint holds."""
        return part


class Passage:
    """A message on its way through one end's mods; `message` is what comes out, `back` takes the answer home."""

    def __init__(self, ways: Iterable[Callable[[Message, Context], Way]], message: Message, context: Context) -> None:
        self.open: list[Way] = []
        for way in ways:
            self.open.append(way(message, context))
            message = next(self.open[-1])
        self.message = message

    def back(self, answer: Message) -> Message:
        for way in reversed(self.open):
            try:
                way.send(answer)
            except StopIteration as done:
                answer = done.value
            else:
                raise MessageError("a mod yielded twice; it must pass a message on exactly once")
        return answer


def out_of_server(mods: Iterable[Mod], message: Message, context: Context) -> Passage:
    return Passage([mod.at_server for mod in mods], message, context)


def into_client(mods: Iterable[Mod], message: Message, context: Context) -> Passage:
    return Passage([mod.at_client for mod in reversed(list(mods))], message, context)


def restored(mods: Iterable[Mod], state: Mapping[str, Part]) -> dict[str, Part]:
    """The server's state, from what a checkpoint holds of it."""
    parts = dict(state)
    for mod in mods:
        parts = {name: mod.restored(part) for name, part in parts.items()}
    return parts
