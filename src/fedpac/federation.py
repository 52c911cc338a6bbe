"""The round loop: choose, send, train, merge, evaluate."""

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fedpac.engines import Engine
from fedpac.engines.site import Failure, Job, Kind, Outcome
from fedpac.errors import ConfigError
from fedpac.evaluation import Evaluation
from fedpac.message import Message
from fedpac.methods.base import Method, check_aggregation, check_optimizer, returned
from fedpac.metrics import headline, misfit, validated
from fedpac.mods.base import Context, out_of_server, restored
from fedpac.mods.dp import Dp
from fedpac.optimizers import Optimizer
from fedpac.replies import accepted
from fedpac.robust import Rule, aggregating
from fedpac.rounds import Letters, Opening, RoundLostError, RoundReport, Tally, refusal
from fedpac.sampling import Sampler, Uniform
from fedpac.server import Server
from fedpac.task import State, Task
from fedpac.threads import one_thread
from fedpac.timing import span

CHUNK = 1024  # clients at a time: their messages are in memory, those of a hundred thousand need not be
MEMORY = "mods "  # in a checkpoint: before the names of what mods remember
REPEATS = 3  # of a round that too few answered, where another try may go better


class Federation:
    """One method on one task with one engine. Iterate over `rounds()`; the shared state is in `server`.

    sampler       who takes part; by default everybody
    evaluation    what is measured, how often, on how many
    min_replies   a round with fewer does not count, and is repeated where another try may go better; unset, every
                  chosen client must answer, and the first that fails ends the run with its error
    aggregation   what stands in for the weighted mean where clients may be hostile; unset, the mean
    optimizer     how the server moves to averages; unset, as the method says, and that is mostly all the way
    """

    def __init__(
        self,
        task: Task,
        method: Method,
        engine: Engine,
        *,
        sampler: Sampler | None = None,
        evaluation: Evaluation | None = None,
        min_replies: int | None = None,
        optimizer: Optimizer | None = None,
        aggregation: Rule | None = None,
    ) -> None:
        self.task = task
        self.method = method
        self.engine = engine
        self.sampler = Uniform() if sampler is None else sampler
        self.evaluation = Evaluation() if evaluation is None else evaluation
        asked = self.sampler.usual(task) if isinstance(self.sampler, Uniform) and task.rounds > 1 else task.clients
        if min_replies is not None and min_replies > asked:
            raise ConfigError(f"min_replies = {min_replies}, but only {asked} clients participate in a round")
        self.min_replies = min_replies
        check_optimizer(method, optimizer)
        if method.needs_classes and not task.classes:
            raise ConfigError(
                f"method {method.name}: it needs classes, but this task is regression; FedAvg, FedRep, Ditto "
                "and others support regression"
            )
        check_aggregation(method, aggregation)
        self.aggregation = aggregation
        self.memory: State = {}  # what mods remember at the server's end
        self.ahead: Opening | None = None  # the next round, where it has been asked for already
        self.dp = next((mod for mod in task.mods if isinstance(mod, Dp)), None)
        self.server = Server(task, optimizer=optimizer or method.optimizer())
        method.setup(self.server)

    def rounds(self) -> Iterator[RoundReport]:
        while self.server.round < self.task.rounds and not self.stopped:
            yield self.step()

    @property
    def stopped(self) -> str | None:
        """Why there are no further rounds although some were planned."""
        return self.dp.stops(self.memory) if self.dp is not None else None

    def snapshot(self) -> State:
        """All that the server must remember, for a checkpoint."""
        return {**self.server.state, **{f"{MEMORY}{name}": part for name, part in self.memory.items()}}

    def restore(self, round: int, state: State) -> None:
        """Go on after this round, from what a checkpoint holds of the server's state."""
        self.ahead = None
        self.memory = {k.removeprefix(MEMORY): part for k, part in state.items() if k.startswith(MEMORY)}
        self.server.round, self.server.state = round, restored(self.task.mods, of_method(state))

    @one_thread()  # the server's sums as well: a run may go on where there are other cores
    @span("server", root=True)
    def step(self) -> RoundReport:
        """One round that counts: where too few answer, and another try may go better, it is repeated."""
        for _ in range(REPEATS):
            try:
                return self._attempt()
            except RoundLostError as lost:
                if not all(failure.passing for failure in lost.failed):
                    raise
        return self._attempt()

    def _attempt(self) -> RoundReport:
        start = time.perf_counter()
        server, engine = self.server, self.engine
        opening, self.ahead = self.ahead or self._opening(), None
        strict = self.min_replies is None
        # A merge may change its state in place, and other clients may fail after the first wave was merged. Where the
        # first failure ends the run, nobody goes on from what is left.
        before = copy.deepcopy(server.state) if len(opening.waves) > 1 and not strict else dict(server.state)
        server.round = opening.round
        try:
            report = self._run(opening, Tally(strict))
        except BaseException:
            server.round, server.state = opening.round - 1, before
            engine.forget(opening.round)
            raise
        engine.keep(opening.round)
        later = self.ahead.seconds if self.ahead is not None else 0.0
        return replace(report, seconds=opening.seconds + time.perf_counter() - start - later)

    def _opening(self) -> Opening:
        round, engine = self.server.round + 1, self.engine
        available = engine.available()
        if engine.listener is not None:
            engine.listener.present(available)
        chosen = self._chosen(round, available)
        plan = self.evaluation.plan(self.task, round, chosen, available)
        waves = self.method.waves(chosen)
        assert sorted(i for wave in waves for i in wave) == chosen, "every chosen client is in one wave"
        return Opening(round, chosen, waves, plan)

    def _chosen(self, round: int, available: Sequence[int]) -> list[int]:
        chosen = sorted(self.sampler.choose(self.task, round, available))
        strangers = set(chosen).difference(available)
        if strangers or len(set(chosen)) < len(chosen):
            problem = f"client {min(strangers)}, which is not available" if strangers else "a client twice"
            raise ConfigError(f"round {round}: the sampler {type(self.sampler).__name__} chose {problem}")
        return chosen

    def _run(self, opening: Opening, tally: Tally) -> RoundReport:
        server, method, plan, chosen = self.server, self.method, opening.plan, opening.chosen
        needed = self._needed(opening)
        if len(chosen) < needed:
            raise RoundLostError(server.round, len(chosen), needed, [])
        if opening.memory is not None:
            self.memory = opening.memory
        # those who stay away rehearse with what they would hear at the beginning of the round
        if opening.rehearsed is None:
            self._score("rehearse", opening.absentees, tally)
        else:
            tally.count(opening.rehearsed, "personal")
        answered, waiting = 0, len(chosen)
        heard: dict[int, float] = {}
        first = opening.first
        for wave in opening.waves:
            replies: dict[int, Message] = {}
            for some in _chunks(wave):
                letters, first = first or self._letters(some, plan.personal), None
                fitting = self._learn(letters, tally)
                answered, waiting = answered + len(fitting), waiting - len(some)
                heard |= {i: up.number("n") if "n" in up else 1.0 for i, up in fitting.items()}
                with aggregating(self.aggregation):
                    replies |= fitting if len(wave) <= CHUNK else method.condense(fitting)
            if answered + waiting < needed:
                raise RoundLostError(server.round, answered, needed, tally.failed)
            if replies:
                with span("merging"), aggregating(self.aggregation):
                    method.merge(server, replies)
        for mod in self.task.mods:
            mod.merged(heard, self.memory)
        if plan.received and self._next_may_begin():
            self._begin_next(self._jobs("receive", plan.received), tally)
        else:
            self._score("receive", plan.received, tally)
        return RoundReport(
            round=server.round,
            chosen=chosen,
            scores=sorted(tally.scores, key=lambda score: (score.which, score.client)),
            bytes_down=tally.bytes_down,
            bytes_up=tally.bytes_up,
            seconds=0.0,
            client_seconds=tally.seconds,
            peer_weights=method.peer_weights(server),
            failed=tally.failed,
            epsilon=self.dp.epsilon(self.memory) if self.dp is not None else None,
            promise=self.dp.promise if self.dp is not None else "",
            metric=headline(self.task.classes),
        )

    def _needed(self, opening: Opening) -> int:
        return self.min_replies or max(1, len(opening.chosen))

    def _next_may_begin(self) -> bool:
        """Whether what is left to score of this round can go along with the next one's messages.

        Not under differential privacy: whoever answers has spent some, in a round that may not come.
        """
        last = self.task.is_last(self.server.round)
        return not last and self.dp is None and self.task.clients <= CHUNK and self.engine.ready()

    def _begin_next(self, owed: Mapping[int, Job], tally: Tally) -> None:
        """Ask for the next round, and on the same way for what is owed of this one. The server stays as it is."""
        scored: dict[int, Outcome] = {}
        for _ in range(REPEATS):
            start, opening = time.perf_counter(), self._opening()
            scored |= self._ask_ahead(opening, {i: job for i, job in owed.items() if _worth_asking(scored.get(i))})
            opening.seconds = time.perf_counter() - start
            if tally.strict or self._will_count(opening):
                self.ahead = opening
                break
            self.engine.forget(opening.round)
        tally.count(scored, "received")

    def _ask_ahead(self, opening: Opening, owed: Mapping[int, Job]) -> dict[int, Outcome]:
        now, self.memory = self.memory, dict(self.memory)
        self.server.round += 1
        try:
            rehearsals = self._jobs("rehearse", opening.absentees)
            opening.first = self._letters(next(iter(opening.waves), []), opening.plan.personal)
        finally:
            self.server.round -= 1
            opening.memory, self.memory = self.memory, now
        jobs = opening.first.jobs | rehearsals
        alone = [job for i, job in owed.items() if i not in jobs]
        outcomes = self._ask([*(replace(job, first=owed.get(i)) for i, job in jobs.items()), *alone])
        opening.first.outcomes = {i: outcomes[i] for i in opening.first.jobs}
        opening.rehearsed = {i: outcomes[i] for i in rehearsals}
        return {i: outcomes[i].first or outcomes[i] for i in owed}

    def _will_count(self, opening: Opening) -> bool:
        """Whether another try would go no better than what the first wave answered."""
        outcomes = opening.first.outcomes if opening.first is not None else None
        failed = [outcome.error for outcome in (outcomes or {}).values() if outcome.error is not None]
        enough = len(opening.chosen) - len(failed) >= self._needed(opening)
        return enough or not all(failure.passing for failure in failed)

    def message_to(self, client: int) -> Message:
        """What the server would send to this client now."""
        sent = self.method.send(self.server, client)
        return returned(self.method, "send", sent, Message, "a Message to the client")

    def _letters(self, clients: Sequence[int], scored: set[int]) -> Letters:
        """What these clients are sent to learn from."""
        round = self.server.round
        downs = {i: self.message_to(i) for i in clients}
        passages = {i: out_of_server(self.task.mods, down, Context(i, round, self.memory)) for i, down in downs.items()}
        kinds: dict[int, Kind] = {i: "learn-and-score" if i in scored else "learn" for i in clients}
        return Letters(downs, passages, {i: Job(kinds[i], i, round, passages[i].message) for i in clients})

    def _learn(self, sent: Letters, tally: Tally) -> dict[int, Message]:
        """What these clients answer, as far as it can be merged."""
        tally.bytes_down += sum(passage.message.nbytes for passage in sent.passages.values())
        outcomes = self._ask(list(sent.jobs.values())) if sent.outcomes is None else sent.outcomes
        replies: dict[int, Message] = {}
        refused: dict[int, str] = {}
        for i, outcome in outcomes.items():
            if outcome.up is not None:
                tally.bytes_up += outcome.up.nbytes
                try:
                    replies[i] = sent.passages[i].back(outcome.up)
                except Exception as error:  # whatever strange bytes do to a mod
                    refused[i] = f"client {i}: {error}"
        with span("checking"):
            expected = {i: self.method.replies(self.server, i, sent.downs[i]) for i in replies}
            fitting, misfits = accepted(replies, expected)
        refusals = {i: refusal(outcomes[i], reason) for i, reason in (refused | misfits).items()}
        tally.count(outcomes | refusals, "personal")
        return fitting

    def _score(self, kind: Kind, clients: Sequence[int], tally: Tally) -> None:
        for some in _chunks(clients):
            outcomes = self._ask(list(self._jobs(kind, some).values()))
            tally.count(outcomes, "received" if kind == "receive" else "personal")

    def _jobs(self, kind: Kind, clients: Sequence[int]) -> dict[int, Job]:
        round, mods = self.server.round, self.task.mods
        contexts = {i: Context(i, round, self.memory) for i in clients}
        sent = {i: out_of_server(mods, self.message_to(i), contexts[i]).message for i in clients}
        return {i: Job(kind, i, round, down) for i, down in sent.items()}

    def _ask(self, jobs: Sequence[Job]) -> dict[int, Outcome]:
        """One outcome for each job; those that cannot be are refused."""
        outcomes = self.engine.map(jobs)
        for job in jobs:
            outcomes[job.client] = self._possible(job, outcomes[job.client])
        return outcomes

    def _possible(self, job: Job, outcome: Outcome) -> Outcome:
        if job.first is not None:
            missing = Failure(job.client, "refused", f"client {job.client}: half of the answer is missing")
            first = outcome.first or Outcome(job.client, error=outcome.error or missing)
            outcome = replace(outcome, first=self._possible(job.first, first))
        if outcome.error is None and (problem := _impossible(job, outcome, self.task)):
            return replace(refusal(outcome, f"client {job.client}: {problem}"), first=outcome.first)
        return outcome


def _worth_asking(outcome: Outcome | None) -> bool:
    return outcome is None or (outcome.error is not None and outcome.error.passing)


def _impossible(job: Job, outcome: Outcome, task: Task) -> str | None:
    if job.learns and outcome.up is None:
        return "there is no reply"
    if outcome.score is not None:
        accuracy, loss = outcome.score
        least, what = (0.0, "accuracy") if task.classes else (-math.inf, "R^2")
        if not (least <= accuracy <= 1 and loss >= 0):  # NaN is neither
            return f"the {what} is {accuracy:g} and the loss {loss:g}; expected {least:g} to 1, and 0 or more"
    return misfit(outcome.measured, validated(task.metrics, task.classes), task.classes)


def _chunks(clients: Sequence[int]) -> Iterator[list[int]]:
    for at in range(0, len(clients), CHUNK):
        yield list(clients[at : at + CHUNK])


def of_method(state: State) -> State:
    """What of a checkpoint is the method's."""
    return {name: part for name, part in state.items() if not name.startswith(MEMORY)}
