"""Spans: whose seconds are whose."""

import threading
import time
from itertools import count

import pytest

from fedpac import timing
from fedpac.engines import make_engine
from fedpac.methods.fedpac import FedPAC
from fedpac.timing import Clock, measuring, span
from helpers import run_federation


@pytest.fixture
def ticks(monkeypatch):
    """A second passes between any two looks at the clock."""
    seconds = count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(seconds)))


def test_the_inner_span_has_the_time_and_a_root_is_nobodys_part(ticks):
    @span("inner")
    def inner():
        with span("visit", root=True), span("inner"):
            pass

    with measuring() as clock:
        with span("outer"):
            inner()
            inner()
        taken = clock.take()
    assert taken == {
        ("outer",): 3.0,
        ("outer", "inner"): 4.0,
        ("visit",): 4.0,
        ("visit", "inner"): 2.0,
    }


def test_an_open_span_is_taken_in_parts(ticks):
    with measuring() as clock, span("long"):
        assert clock.take() == {("long",): 1.0}
        assert clock.take() == {("long",): 1.0}


def test_an_error_closes_its_spans(ticks):
    with measuring() as clock:
        with pytest.raises(ZeroDivisionError), span("a"), span("b"):
            raise ZeroDivisionError
        with span("c"):
            pass
        assert set(clock.take()) == {("a",), ("a", "b"), ("c",)}


def test_threads_have_spans_of_their_own():
    def work():
        with span("b"):
            pass

    with measuring() as clock, span("a"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert set(clock.take()) == {("a",), ("b",)}


def test_nothing_is_measured_unless_asked(monkeypatch):
    monkeypatch.setattr(Clock, "start", lambda *_: pytest.fail("measured"))
    with span("a"):
        assert timing.clock is None


@pytest.mark.parametrize("engine", ["serial", "process"])
def test_what_is_measured_of_a_federation(engine):
    plain = run_federation(FedPAC(), rounds=2, engine=lambda *task: make_engine(engine, *task, 2))
    began = time.perf_counter()
    with measuring() as clock:
        measured = run_federation(FedPAC(), rounds=2, engine=lambda *task: make_engine(engine, *task, 2))
        spent = clock.take()
    whole = time.perf_counter() - began
    assert measured.bytes() == plain.bytes()
    at_clients = {"features", "statistics", "head epochs", "body epochs", "evaluation", "samples"}
    assert at_clients <= {part for name in spent if name[0] == "clients" for part in name[1:]}
    assert {("clients", "body epochs", part) for part in ("forward", "backward", "update")} <= set(spent)
    assert ("server", "merging", "combination weights") in spent
    assert all(seconds >= 0 for seconds in spent.values())
    server = sum(seconds for name, seconds in spent.items() if name[0] == "server")
    visits = sum(seconds for name, seconds in spent.items() if name[0] == "clients")
    if engine == "serial":
        assert server + visits <= whole  # nothing is counted twice
        assert {name[0] for name in spent} == {"server", "clients"}
    else:
        assert server <= whole
        for name in ("server", "waiting for workers"), ("exchange", "messages"), ("clients", "waiting for the server"):
            assert spent[name] > 0
    assert visits >= sum(report.client_seconds for report in measured.reports)
