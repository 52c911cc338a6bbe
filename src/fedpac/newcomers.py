"""A client that never took part: it says what it must of itself, once, and gets a model."""

from collections.abc import Callable
from dataclasses import dataclass

from fedpac.engines.site import Job, Outcome
from fedpac.errors import ConfigError, RunError
from fedpac.message import Message
from fedpac.methods.base import Method
from fedpac.mods.base import Context, out_of_server
from fedpac.replies import accepted
from fedpac.rounds import error_of
from fedpac.server import Server


@dataclass(frozen=True)
class Reception:
    """How a server receives newcomers. Nothing is kept of them, and the server's state stays as it is."""

    method: Method
    server: Server

    def welcome(self, client: int, samples: int, ask: Callable[[Job], Outcome]) -> Message:
        """The message from which `method.arrival` makes the newcomer's model.

        client    a number that no participant has
        samples   how many labelled ones the newcomer has
        ask       carries a job to the newcomer and its outcome back
        """
        method, server = self.method, self.server
        self.check(samples)
        down = method.welcome(server)
        if not samples:
            return down
        mods, round = server.task.mods, server.round + 1
        passage = out_of_server(mods, down, Context(client, round))
        outcome = ask(Job("introduce", client, round, passage.message))
        if outcome.error is not None:
            raise error_of(outcome.error)
        if not outcome.up:
            return down
        hello = passage.back(outcome.up)
        _, refused = accepted({client: hello}, {client: method.introduction(server)})
        if refused:
            raise RunError(f"the newcomer's statistics were rejected: {refused[client]}")
        return method.welcome(server, hello)

    def check(self, samples: int) -> None:
        gets, title = self.method.newcomer(), self.method.title
        if not gets.labelled:
            raise ConfigError(
                f"{title} shares no predictive part: a newcomer gets no model until it participates in rounds"
            )
        if not samples and not gets.without:
            raise ConfigError(f"{title} needs labelled samples from a newcomer, which then gets {gets.labelled}")
