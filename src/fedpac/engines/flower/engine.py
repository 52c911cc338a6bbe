"""The server's end of a federation of real sites, over a Flower grid."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from flwr.app import Message as Envelope
from flwr.serverapp import Grid

from fedpac.engines.base import Engine
from fedpac.engines.flower.wire import Answer, Errand, Request, Spec, outcome_of, pack, request_bytes, unpack
from fedpac.engines.site import Failure, Job, Outcome
from fedpac.engines.store import FolderStore
from fedpac.errors import MessageError
from fedpac.methods.base import Method
from fedpac.task import State, Task

GLANCE, LONGEST = 0.05, 0.5  # seconds between two looks for answers: at first, and when nothing comes for long
PRESENCE = 1.0  # seconds between two looks at who is there
ASKED = 30.0  # seconds after which a hello is taken for lost: its site may have lost the connection that brought it
AGAIN = 10.0  # seconds until a site that could not say hello is asked again
SILENCE, REMINDER = 2.0, 60.0  # seconds of waiting for sites until that is said, and said again
GRACE = 60.0  # seconds that an answer may still be on its way when its deadline has passed

Say = Callable[[str], None]


@dataclass(frozen=True)
class Introduced:
    """A site that has said who it is."""

    client: int
    node: int
    train: int
    test: int


class SiteDirectory:
    """Who is there. A node counts once it has answered hello with the name that belongs to its key.

    keys    public key -> site, as registered; None where nodes have no keys: the first that comes with a name has it
    """

    def __init__(self, grid: Grid, spec: Spec, keys: Mapping[bytes, str] | None, say: Say) -> None:
        self.grid = grid
        self.spec = spec
        self.keys = keys
        self.say = say
        self.here: dict[int, Introduced] = {}  # client -> site
        self.seen: dict[int, Introduced] = {}  # the same, with those who have gone
        self.asked: dict[int, tuple[str, float]] = {}  # node -> the hello it has not answered, and until when it may
        self.later: dict[int, float] = {}  # node -> when to ask again
        self.looked = 0.0

    def look(self) -> None:
        """Hear those who answered hello, forget those who went, greet those who came."""
        self._hear()
        if time.monotonic() - self.looked < PRESENCE:
            return
        self.looked = time.monotonic()
        online = {node.node_id: bytes(node.public_key) for node in self.grid.get_nodes()}
        for client in [c for c, site in self.here.items() if site.node not in online]:
            self.lose(client, "is gone")
        now = time.monotonic()
        self.asked = {node: hello for node, hello in self.asked.items() if node in online and hello[1] > now}
        known = {site.node for site in self.here.values()} | self.asked.keys()
        for node in online.keys() - known:
            if now >= self.later.get(node, 0.0):
                self._greet(node)

    def lose(self, client: int, why: str) -> None:
        """It counts again when it has answered another hello."""
        if client in self.here:
            self.say(f"{self.name(client)} {why}")
            self._greet(self.here.pop(client).node)

    def rows(self, known: Sequence[Mapping[str, Any]] = ()) -> list[tuple[Any, ...]]:
        """Of a run's clients.csv: who holds how many samples, as far as this or an earlier table knows."""
        sizes = {int(row["client"]): (row["train"], row["test"]) for row in known}
        sizes |= {client: (site.train, site.test) for client, site in self.seen.items()}
        return [(client, name, "", *sizes.get(client, (0, 0))) for client, name in enumerate(self.spec.sites)]

    def name(self, client: int) -> str:
        return f"site '{self.spec.names[client]}'"

    def participants(self) -> list[int]:
        return sorted(client for client in self.here if client < len(self.spec.sites))

    def newcomers(self) -> list[Introduced]:
        return [site for client, site in sorted(self.here.items()) if client >= len(self.spec.sites)]

    def _greet(self, node: int) -> None:
        request = Request(kind="hello", client=-1, round=0, spec=self.spec)
        (hello,) = self.grid.push_messages([envelope(node, pack(request))])
        if hello:
            self.asked[node] = hello, time.monotonic() + ASKED

    def _hear(self) -> None:
        if not self.asked:
            return
        nodes = {hello: node for node, (hello, _) in self.asked.items()}
        for reply in self.grid.pull_messages(list(nodes)):
            node = nodes.pop(reply.metadata.reply_to_message_id, None)  # a second answer has none
            if node is None:
                continue
            del self.asked[node]
            problem = f"does not answer ({reply.error.reason})" if reply.has_error() else self._introduce(node, reply)
            if problem:
                self.later[node] = time.monotonic() + AGAIN
                self.say(f"node {node} {problem}")

    def _introduce(self, node: int, reply: Envelope) -> str | None:
        """Why the node is not who it says it is; None if it is."""
        try:
            answer, _ = unpack(reply.content, Answer)
        except MessageError as error:
            return f"is refused: {error}"
        if answer.problem is not None:
            return f"('{answer.site}') cannot take part: {answer.problem.reason}"
        if answer.site not in self.spec.names:
            return f"is refused: '{answer.site}' is not a site of this federation"
        if answer.site in self.spec.left:
            return f"is refused: '{answer.site}' has left this federation"
        client = self.spec.names.index(answer.site)
        if self.keys is not None:
            key = next((bytes(n.public_key) for n in self.grid.get_nodes() if n.node_id == node), b"")
            if self.keys.get(key) != answer.site:
                return f"is refused: its key does not belong to '{answer.site}'"
        if client in self.here and self.here[client].node != node:
            return f"is refused: '{answer.site}' is already connected"
        self.here[client] = self.seen[client] = Introduced(client, node, answer.train, answer.test)
        expected = len(self.spec.sites) - len(self.spec.left)
        count = f"{len(self.participants())} of {expected}" if client < len(self.spec.sites) else "a newcomer"
        self.say(f"{self.name(client)} connected, {count}")
        return None


def pause_after(silence: float) -> float:
    """Seconds until the next look, when nothing has come for so long."""
    return min(max(GLANCE, silence / 10), LONGEST)


def envelope(node: int, content: Any, lifetime: float | None = None) -> Envelope:
    return Envelope(content, node, "train", ttl=lifetime)


@dataclass(frozen=True)
class Letter:
    """What a site is asked. One that connects anew may have lost it, and is asked once more: it goes on from what the
    server knows of, so an answer that was under way after all makes no difference, and is not counted."""

    request: Request
    body: bytes
    node: int
    again: bool = False


class FlowerEngine(Engine):
    """Asks each client at its site, and waits for its answer until the deadline.

    needed     sites without which no round begins; it waits for them as long as it takes
    patience   seconds that all the others have to come before the first round

    A site keeps its states of the last three rounds. Each request says which round of its own counted last, so that a
    site whose answer was lost goes on from what the server knows of, and nothing is learned twice.
    """

    def __init__(
        self, task: Task, method: Method, directory: SiteDirectory, deadline: float | None, needed: int, patience: float
    ) -> None:
        super().__init__(task, method)
        self.directory = directory
        self.grid = directory.grid
        self.deadline = deadline
        self.needed = needed
        self.patience = patience
        self.answered: dict[
            int, list[int | None]
        ] = {}  # client -> the rounds that it answered in; None: it is not known
        self.over = 0  # the last round that counts

    def snapshot(self) -> Mapping[int, State]:
        last = {client: self.since(client, self.over) for client in self.answered}
        return {client: {"counted": float(round)} for client, round in last.items() if round}

    def restore(self, states: Mapping[int, State]) -> None:
        """What a snapshot says; that of a trial which has ended holds the clients' own states instead."""
        given = {client: cast("float | None", state.get("counted")) for client, state in states.items()}
        self.answered = {client: [None if round is None else int(round)] for client, round in given.items()}

    def keep(self, round: int) -> None:
        self.over = round

    def forget(self, round: int) -> None:
        for client, rounds in self.answered.items():
            self.answered[client] = [known for known in rounds if known != round]

    def since(self, client: int, round: int) -> int | None:
        """The last round up to this one in which the client's answer came; 0 if none did, None if that is not known."""
        known = [answered for answered in self.answered.get(client, []) if answered is None or answered <= round]
        return known[-1] if known else 0

    def available(self) -> Sequence[int]:
        return self.wait_for(self.needed)

    def wait_for(self, needed: int) -> Sequence[int]:
        """Who is here, once so many are; all others are waited for as long as there is patience."""
        start, said = time.monotonic(), 0
        while True:
            self.directory.look()
            here = self.directory.participants()
            if self.listener is not None:
                self.listener.present(here)
            waited = time.monotonic() - start
            if len(here) == self.task.clients - len(self.spec.left) or (len(here) >= needed and waited > self.patience):
                self.patience = 0.0
                return here
            if waited > SILENCE + said * REMINDER:
                said += 1
                expected = self.task.clients - len(self.spec.left)
                self.directory.say(f"waiting for {self._missing()}: {len(here)} of {expected} sites are connected")
            time.sleep(pause_after(waited))

    def _missing(self) -> str:
        there = {*self.spec.left, *(self.spec.names[i] for i in self.directory.here)}
        names = [name for name in self.spec.sites if name not in there]
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    def ready(self) -> bool:
        self.directory.look()
        return len(self.directory.participants()) >= self.needed

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        learning = {job.client: job.round for job in jobs if job.learns}
        for outcome in self.ask([self.errand(job) for job in jobs]):
            if outcome.error is None and outcome.client in learning:
                earlier = self.answered.get(outcome.client, [])
                self.answered[outcome.client] = [*earlier, learning[outcome.client]][-FolderStore.KEPT :]
            yield outcome

    def errand(self, job: Job) -> tuple[Request, bytes]:
        """A job, as it travels."""
        also, body = request_bytes(job)
        return self.request(job.kind, job.client, job.round, **also), body

    def request(self, kind: Errand, client: int, round: int, **also: int) -> Request:
        since = self.since(client, round if kind in ("receive", "finish") else round - 1)
        return Request(
            kind=kind, client=client, round=round, since=since, selected=self.selected, spec=self.spec, **also
        )

    @property
    def spec(self) -> Spec:
        return self.directory.spec

    def ask(self, requests: Sequence[tuple[Request, bytes]]) -> Iterable[Outcome]:
        """One outcome for each request."""
        letters: list[Letter] = []
        for request, body in requests:
            if (site := self.directory.here.get(request.client)) is None:
                yield self._failed(request, "absent", "is not connected")
            else:
                letters.append(Letter(request, body, site.node))
        connected = self._connections() if letters else {}
        waiting = self._post(letters)
        reached = {letter.node for letter in waiting.values()}
        for letter in letters:
            if letter.node not in reached:
                yield self._failed(letter.request, "lost", "cannot be reached")
        start = heard = looked = time.monotonic()
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                asked = waiting.pop(reply.metadata.reply_to_message_id, None)  # a second answer finds nobody waiting
                if asked is not None:
                    heard = time.monotonic()
                    yield self._read(asked.request, asked.node, reply)
            now = time.monotonic()
            if self.deadline is not None and now - start >= self.deadline:
                break
            if waiting and now - looked >= PRESENCE:
                looked, since = now, self._connections()
                anew = {
                    name: one for name, one in waiting.items() if since.get(one.node, "") > connected.get(one.node, "")
                }
                connected |= since
                for name, letter in anew.items():
                    del waiting[name]
                    if letter.again:
                        yield self._failed(letter.request, "lost", "lost its connection twice")
                waiting |= self._post([replace(letter, again=True) for letter in anew.values() if not letter.again])
            if waiting:
                time.sleep(pause_after(time.monotonic() - heard))
        for letter in waiting.values():
            yield self._failed(letter.request, "deadline", f"did not reply within {self.deadline:g} s")

    def _post(self, letters: Sequence["Letter"]) -> dict[str, "Letter"]:
        """Message -> letter, of those that are on their way."""
        lifetime = None if self.deadline is None else self.deadline + GRACE
        messages = [envelope(letter.node, pack(letter.request, letter.body), lifetime) for letter in letters]
        names = list(self.grid.push_messages(messages)) if messages else []
        return {name: letter for name, letter in zip(names, letters, strict=False) if name}

    def _connections(self) -> dict[int, str]:
        """Node -> since when it is connected."""
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}

    def _read(self, request: Request, node: int, reply: Envelope) -> Outcome:
        if reply.has_error():
            return self._failed(request, "lost", f"was lost ({reply.error.reason})")
        try:
            answer, body = unpack(reply.content, Answer)
            name = self.spec.names[request.client]
            expected = (name, request.kind, request.client, request.round, node)
            given = (answer.site, answer.kind, answer.client, answer.round, reply.metadata.src_node_id)
            if given != expected:
                raise MessageError(f"the reply is {given}; expected {expected}")
            if answer.problem is None and (answer.received is None) != (request.received is None):
                raise MessageError("the answer leaves out a result, or has one that nobody asked for")
            return outcome_of(answer, body)
        except MessageError as error:
            reason = f"{self.directory.name(request.client)}: {error}"
            return Outcome(request.client, error=Failure(request.client, "refused", reason))

    def _failed(self, request: Request, cause: Any, what: str) -> Outcome:
        self.directory.lose(request.client, what)
        reason = f"{self.directory.name(request.client)} {what}, round {request.round}"
        return Outcome(request.client, error=Failure(request.client, cause, reason))
