"""Engines of all kinds keep the contract, and those that do not are found out."""

from dataclasses import replace
from functools import partial

import pytest

from fedpac.engines import SerialEngine, make_engine
from fedpac.testing import check_engine
from fedpac.testing.engines import Apart, Recording, Reversed, Shuffled
from helpers import EVERY_ENGINE


@pytest.mark.parametrize("name", EVERY_ENGINE)
def test_the_engines_of_the_package(name):
    assert [str(verdict) for verdict in check_engine(partial(make_engine, name)) if not verdict.passed] == []


@pytest.mark.parametrize("engine", [Apart, Recording, Reversed, Shuffled])
def test_the_engines_that_methods_are_checked_on(engine):
    assert [str(verdict) for verdict in check_engine(engine) if not verdict.passed] == []


class Loses(SerialEngine):
    """The last answer."""

    def run(self, jobs):
        return list(super().run(jobs))[:-1]


class Raises(SerialEngine):
    """Where a client fails."""

    def run(self, jobs):
        outcomes = list(super().run(jobs))
        if any(outcome.error for outcome in outcomes):
            raise ZeroDivisionError("a client failed")
        return outcomes


class Mute(SerialEngine):
    """Says that a client failed, and not why."""

    def run(self, jobs):
        outcomes = super().run(jobs)
        return [replace(o, error=replace(o.error, reason="failed")) if o.error else o for o in outcomes]


class LearnsTwice(SerialEngine):
    def run(self, jobs):
        self.store.earlier = {}
        return super().run(jobs)


class Forgets(SerialEngine):
    """What it should go on from."""

    def restore(self, states): ...


class Rounds(SerialEngine):
    """Scores are rounded on their way."""

    def run(self, jobs):
        for outcome in super().run(jobs):
            score = tuple(round(number, 4) for number in outcome.score) if outcome.score else None
            yield replace(outcome, score=score)


class NoSites(SerialEngine):
    """States are the sites' own."""

    def snapshot(self):
        return {}


@pytest.mark.parametrize(
    ("engine", "failed", "text"),
    [
        (Loses, "one outcome for each job", "client 3 does not answer"),
        (Raises, "a failure is an outcome", "ZeroDivisionError: a client failed"),
        (Mute, "a failure is an outcome", "the reason is lost: 'failed'"),
        (LearnsTwice, "a repeated round", "answers something else when round 2 is repeated"),
        (Forgets, "on from a snapshot", "a run made anew from its snapshot in every round: round 2"),
        (Rounds, "the serial numbers: fedavg", "round 1: client 0's personal test loss is"),
    ],
)
def test_an_engine_that_does_not(engine, failed, text):
    verdicts = {verdict.name: verdict for verdict in check_engine(engine)}
    assert verdicts[failed].result == "failed"
    assert text in verdicts[failed].found
    assert verdicts[failed].right


def test_states_that_stay_at_their_sites_are_no_failure():
    verdict = next(v for v in check_engine(NoSites) if v.name == "on from a snapshot")
    assert (verdict.result, verdict.found) == ("passed", "snapshot() is empty: the states are the sites' own")
