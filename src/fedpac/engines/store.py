"""What clients remember between visits, at the site where they are.

A state is kept under the round that made it, beside those before it. A round that has to be repeated (its server
died, too few sites answered) then starts from where it started the first time, and nothing is learned twice.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from fedpac.errors import MessageError, RunError
from fedpac.files import explained, write_atomically
from fedpac.message import Message
from fedpac.task import State


class StateStore(ABC):
    @abstractmethod
    def before(self, client: int, round: int) -> State:
        """What the client knew when this round began; empty if it never took part."""

    @abstractmethod
    def newest(self, client: int) -> State:
        """What the client knows now."""

    @abstractmethod
    def save(self, client: int, round: int, state: State) -> None:
        """Keep what the client learned in this round, and what it knew before."""


class MemoryStore(StateStore):
    """For simulations. The states before a round are kept for that round's clients only."""

    def __init__(self) -> None:
        self.states: dict[int, State] = {}
        self.round = 0  # of the last save
        self.earlier: dict[int, State] = {}  # what that round's clients knew before it

    def before(self, client: int, round: int) -> State:
        states = self.earlier if round == self.round and client in self.earlier else self.states
        return dict(states.get(client, {}))

    def newest(self, client: int) -> State:
        return dict(self.states.get(client, {}))

    def save(self, client: int, round: int, state: State) -> None:
        if round != self.round:
            self.round, self.earlier = round, {}
        self.earlier.setdefault(client, self.states.get(client, {}))
        if state:
            self.states[client] = state
        else:
            self.states.pop(client, None)

    def forget(self, round: int) -> None:
        """Everybody knows again what they knew before this round, if it was the last."""
        if round == self.round:
            for client, state in list(self.earlier.items()):
                self.save(client, round, state)

    def restore(self, states: Mapping[int, State]) -> None:
        self.states, self.round, self.earlier = dict(states), 0, {}


class FolderStore(StateStore):
    """For sites: one file for each of the last three rounds that a client took part in, readable by the owner only.

    A site may have learned for the next round already when the server is killed before it has this one on its disk.
    """

    KEPT = 3

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def before(self, client: int, round: int) -> State:
        earlier = self._up_to(client, round - 1)
        return self._read(client, earlier[-1]) if earlier else {}

    def newest(self, client: int) -> State:
        rounds = self.rounds(client)
        return self._read(client, rounds[-1]) if rounds else {}

    def rewind(self, client: int, round: int) -> None:
        """Forget what was learned after this round: the server never heard of it, or has taken it back."""
        known = self._up_to(client, round)
        with explained(self.folder):
            for later in set(self.rounds(client)).difference(known):
                self._path(client, later).unlink(missing_ok=True)

    def _up_to(self, client: int, round: int) -> list[int]:
        """The kept rounds up to this one; an error if the client has gone on for longer than it remembers."""
        rounds = self.rounds(client)
        known = [kept for kept in rounds if kept <= round]
        if len(rounds) >= self.KEPT and not known:
            raise RunError(
                f"{self.folder}: client {client} is to go on from round {round}, but has gone on to round {rounds[-1]} "
                f"and only knows what it knew in round {rounds[0]}: the server must go on from a later checkpoint"
            )
        return known

    def save(self, client: int, round: int, state: State) -> None:
        self.rewind(client, round)
        with explained(self.folder):
            write_atomically(self._path(client, round), Message(**state).to_bytes(), mode=0o600)
            for old in self.rounds(client)[: -self.KEPT]:
                self._path(client, old).unlink(missing_ok=True)

    def _path(self, client: int, round: int) -> Path:
        return self.folder / f"client-{client}-round-{round}.safetensors"

    def rounds(self, client: int) -> list[int]:
        """Those whose states are kept, the newest last."""
        with explained(self.folder):
            files = [file.name for file in self.folder.iterdir()]
        names = (re.fullmatch(rf"client-{client}-round-(\d+)\.safetensors", name) for name in files)
        return sorted(int(found[1]) for found in names if found)

    def _read(self, client: int, round: int) -> State:
        path = self._path(client, round)
        try:
            with explained(path):
                return dict(Message.from_bytes(path.read_bytes()))
        except MessageError as error:
            raise RunError(
                f"{path} is damaged ({error}): restore it, or remove it to continue from the previous one"
            ) from None
