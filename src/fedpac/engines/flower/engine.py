"""The server's end of a federation of real sites, over a Flower grid."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import Message as Envelope
from flwr.serverapp import Grid

from fedpac.engines.base import Engine
from fedpac.engines.flower.wire import Answer, Errand, Request, Spec, outcome_of, pack, unpack
from fedpac.engines.site import Failure, Job, Outcome
from fedpac.errors import MessageError
from fedpac.message import Message
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
            return f"is refused: '{answer.site}' is no site of this federation"
        if answer.site in self.spec.left:
            return f"is refused: '{answer.site}' has left this federation"
        client = self.spec.names.index(answer.site)
        if self.keys is not None:
            key = next((bytes(n.public_key) for n in self.grid.get_nodes() if n.node_id == node), b"")
            if self.keys.get(key) != answer.site:
                return f"is refused: its key is not that of '{answer.site}'"
        if client in self.here and self.here[client].node != node:
            return f"is refused: '{answer.site}' is here already"
        self.here[client] = self.seen[client] = Introduced(client, node, answer.train, answer.test)
        expected = len(self.spec.sites) - len(self.spec.left)
        count = f"{len(self.participants())} of {expected}" if client < len(self.spec.sites) else "a newcomer"
        self.say(f"{self.name(client)} is here, {count}")
        return None


def pause_after(silence: float) -> float:
    """Seconds until the next look, when nothing has come for so long."""
    return min(max(GLANCE, silence / 10), LONGEST)


def envelope(node: int, content: Any, lifetime: float | None = None) -> Envelope:
    return Envelope(content, node, "train", ttl=lifetime)


class FlowerEngine(Engine):
    """Asks each client at its site, and waits for its answer until the deadline.

    needed     sites without which no round begins; it waits for them as long as it takes
    patience   seconds that all the others have to come before the first round

    A site keeps its state of the last two rounds. Each request says which round of its own counted last, so that a
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
        self.counted: dict[int, int | None] = {}  # client -> the last round in which its answer came, if known
        self.before: dict[int, int | None] = {}  # the same, before that round

    def snapshot(self) -> Mapping[int, State]:
        return {client: {"counted": float(round)} for client, round in self.counted.items() if round is not None}

    def restore(self, states: Mapping[int, State]) -> None:
        """What a snapshot says; that of a trial which has ended holds the clients' own states instead."""
        given = {client: cast("float | None", state.get("counted")) for client, state in states.items()}
        self.counted = {client: None if round is None else int(round) for client, round in given.items()}

    def forget(self, round: int) -> None:
        for client in [client for client, last in self.counted.items() if last == round]:
            self.counted[client] = self.before.get(client, 0)

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
                self.directory.say(f"waiting for {self._missing()}: {len(here)} sites are here")
            time.sleep(pause_after(waited))

    def _missing(self) -> str:
        there = {*self.spec.left, *(self.spec.names[i] for i in self.directory.here)}
        names = [name for name in self.spec.sites if name not in there]
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        learning = {job.client for job in jobs if job.learns}
        for outcome in self.ask([(self.request(job.kind, job.client, job.round), job.down) for job in jobs]):
            if outcome.error is None and outcome.client in learning:
                self.before[outcome.client] = self.counted.get(outcome.client, 0)
                self.counted[outcome.client] = jobs[0].round
            yield outcome

    def request(self, kind: Errand, client: int, round: int) -> Request:
        return Request(kind=kind, client=client, round=round, since=self.counted.get(client, 0), spec=self.spec)

    @property
    def spec(self) -> Spec:
        return self.directory.spec

    def ask(self, requests: Sequence[tuple[Request, Message]]) -> Iterable[Outcome]:
        """One outcome for each request."""
        waiting: dict[str, tuple[Request, int]] = {}  # message -> request and node
        asked: list[tuple[Request, int]] = []
        messages: list[Envelope] = []
        lifetime = None if self.deadline is None else self.deadline + GRACE
        for request, down in requests:
            if (site := self.directory.here.get(request.client)) is None:
                yield self._failed(request, "absent", "is not here")
            else:
                asked.append((request, site.node))
                messages.append(envelope(site.node, pack(request, down.to_bytes()), lifetime))
        pushed = list(self.grid.push_messages(messages)) if messages else []
        for place, (request, node) in enumerate(asked):
            if place < len(pushed) and pushed[place]:
                waiting[pushed[place]] = (request, node)
            else:
                yield self._failed(request, "lost", "cannot be reached")
        start = heard = time.monotonic()
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                expected = waiting.pop(reply.metadata.reply_to_message_id, None)  # a second answer finds nobody waiting
                if expected is not None:
                    heard = time.monotonic()
                    yield self._read(*expected, reply)
            if self.deadline is not None and time.monotonic() - start >= self.deadline:
                break
            if waiting:
                time.sleep(pause_after(time.monotonic() - heard))
        for request, _ in waiting.values():
            yield self._failed(request, "deadline", f"did not answer within {self.deadline:g} s")

    def _read(self, request: Request, node: int, reply: Envelope) -> Outcome:
        if reply.has_error():
            return self._failed(request, "lost", f"was lost ({reply.error.reason})")
        try:
            answer, body = unpack(reply.content, Answer)
            name = self.spec.names[request.client]
            expected = (name, request.kind, request.client, request.round, node)
            given = (answer.site, answer.kind, answer.client, answer.round, reply.metadata.src_node_id)
            if given != expected:
                raise MessageError(f"the answer is {given}, where {expected} was asked")
            return outcome_of(answer, body)
        except MessageError as error:
            reason = f"{self.directory.name(request.client)}: {error}"
            return Outcome(request.client, error=Failure(request.client, "refused", reason))

    def _failed(self, request: Request, cause: Any, what: str) -> Outcome:
        self.directory.lose(request.client, what)
        reason = f"{self.directory.name(request.client)} {what}, round {request.round}"
        return Outcome(request.client, error=Failure(request.client, cause, reason))
