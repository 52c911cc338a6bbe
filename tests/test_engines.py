"""The process engine when things go wrong, and that it gives the serial engine's numbers."""

import math
import os
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch

from fedpac import engines
from fedpac.engines import AutoEngine, ProcessEngine, SerialEngine, make_engine, process
from fedpac.engines.site import Failure, Job, Outcome, Site
from fedpac.engines.store import FolderStore
from fedpac.errors import ConfigError, FedpacError, RunError, TrainingError
from fedpac.federation import Federation
from fedpac.message import Message
from fedpac.methods import make_method
from fedpac.methods.fedavg import FedAvg
from fedpac.methods.fedpac import FedPAC
from fedpac.methods.fedper import FedPer
from fedpac.rounds import RoundLostError
from fedpac.sampling import Only, Uniform
from fedpac.server import Server
from helpers import EVERY_ENGINE, Finished, run_federation, tiny_data, tiny_task
from small_run import small


class Broken(FedAvg):
    """Client 1 does `deed` in round 2; with a `once`, only as long as that file is not there."""

    name = "broken"
    deed: str
    once: str = ""

    def fit(self, client, w, down):
        if client.id == 1 and client.round == 2 and self.first_time():
            if self.deed == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.deed == "stops":
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.deed == "sleeps":
                time.sleep(600)
            if self.deed == "raises":
                raise ZeroDivisionError("a mistake in a method")
            if self.deed == "packs what cannot be packed":
                return {name: tensor.to_sparse() for name, tensor in w.items()}
            if self.deed == "nan":
                w = {name: torch.full_like(tensor, float("nan")) for name, tensor in w.items()}
        return super().fit(client, w, down)

    def first_time(self) -> bool:
        if not self.once:
            return True
        mark = Path(self.once)
        again = mark.exists()
        mark.touch()
        return not again


def two_workers(task, method, source):
    return ProcessEngine(task, method, source, workers=2)


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_workers_change_nothing(workers):
    serial = run_federation(FedPAC(), rounds=3)
    parallel = run_federation(FedPAC(), rounds=3, engine=partial(ProcessEngine, workers=workers))
    assert parallel.bytes() == serial.bytes()
    assert [r.scores for r in parallel.reports] == [r.scores for r in serial.reports]
    assert [(r.bytes_up, r.bytes_down) for r in parallel.reports] == [
        (r.bytes_up, r.bytes_down) for r in serial.reports
    ]


@pytest.mark.parametrize("name", EVERY_ENGINE)
def test_weights_that_are_no_numbers_name_client_and_round(name):
    with pytest.raises(TrainingError, match="client 1, round 2"):
        run_federation(Broken(deed="nan"), rounds=3, engine=partial(make_engine, name))


def test_without_shared_memory_it_is_the_same(monkeypatch):
    monkeypatch.setattr(process, "shared_memory", lambda size: None)
    parallel = run_federation(FedPAC(), rounds=3, engine=partial(ProcessEngine, workers=2))
    assert parallel.bytes() == run_federation(FedPAC(), rounds=3).bytes()


def test_an_answer_that_cannot_be_packed_shows_its_traceback():
    with pytest.raises(RuntimeError, match=r"(?s)client 1, round 2.*[Ss]parse"):
        run_federation(Broken(deed="packs what cannot be packed"), rounds=3, engine=two_workers)


@pytest.mark.parametrize("engine", EVERY_ENGINE)
def test_a_mistake_in_a_method_shows_its_traceback(engine):
    with pytest.raises(RuntimeError, match=r"(?s)client 1, round 2.*in fit.*ZeroDivisionError: a mistake in a method"):
        run_federation(Broken(deed="raises"), rounds=3, engine=partial(make_engine, engine))


@pytest.mark.parametrize("engine", EVERY_ENGINE)
def test_rounds_go_on_without_a_client_that_fails(engine):
    finished = run_federation(Broken(deed="raises"), rounds=3, min_replies=3, engine=partial(make_engine, engine))
    failed = [[(f.client, f.cause, f.kind) for f in report.failed] for report in finished.reports]
    assert failed == [[], [(1, "error", "ZeroDivisionError")], []]
    assert "client 1, round 2: ZeroDivisionError: a mistake in a method" in finished.reports[1].failed[0].reason
    assert [s.client for s in finished.reports[1].scores if s.which == "personal"] == [0, 2, 3]


def test_too_few_answers_change_nothing():
    data, method = tiny_data(), Broken(deed="raises")
    task = tiny_task(len(data), 3)
    federation = Federation(task, method, SerialEngine(task, method, data), min_replies=4)
    federation.step()
    before = Message(**federation.server.state).to_bytes()
    with pytest.raises(RoundLostError, match=r"round 2: 3 of at least 4 clients replied \(client 1, round 2: ZeroDiv"):
        federation.step()
    assert (federation.server.round, Message(**federation.server.state).to_bytes()) == (1, before)


# --- workers that are lost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("deed", ["dies", "stops"])
def test_a_worker_that_is_lost_is_replaced_and_nothing_is_different(deed, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "GLANCE", 0.1)
    monkeypatch.setattr(process, "STALLED", 1.0)
    for workers in (1, 2):
        method = Broken(deed=deed, once=str(tmp_path / f"{workers}"))
        finished = run_federation(method, rounds=3, engine=partial(ProcessEngine, workers=workers))
        assert (tmp_path / f"{workers}").exists()
        assert finished.bytes() == run_federation(FedAvg(), rounds=3).bytes()


def test_a_client_that_ends_every_worker_costs_its_reply_and_not_the_run():
    finished = run_federation(Broken(deed="dies"), rounds=3, min_replies=1, engine=two_workers)
    assert [[(f.client, f.cause) for f in report.failed] for report in finished.reports] == [[], [(1, "lost")], []]
    with pytest.raises(RunError, match=r"client 1 was killed by signal 9"):
        run_federation(Broken(deed="dies"), rounds=3, engine=two_workers)


def test_a_client_that_is_late_costs_its_reply():
    start = time.monotonic()
    late = partial(ProcessEngine, workers=2, deadline=1.0)
    finished = run_federation(Broken(deed="sleeps"), rounds=3, min_replies=1, engine=late)
    assert time.monotonic() - start < 30
    (failure,) = finished.reports[1].failed
    assert (failure.client, failure.cause) == (1, "deadline")
    assert failure.reason == "client 1 did not reply within 1 s"


def test_what_failed_equals_what_was_not_chosen():
    """30 % of the clients fail at random: as if they had never been asked."""
    data = tiny_data(sizes=(5,) * 10)
    random = Random(1)
    absent = {t: {i for i in range(10) if random.random() < 0.3} for t in range(1, 5)}
    for name in ("fedavg", "fedpac", "scaffold", "ditto", "fedfomo", "pfedhn"):
        method = make_method(name)
        flaky = run_federation(method, rounds=4, data=data, min_replies=1, engine=partial(Flaky, absent=absent))
        assert {t: {f.client for f in r.failed} for t, r in enumerate(flaky.reports, 1)} == absent
        task = tiny_task(10, 4, sample=data[0].train.tensors()[0][0])
        engine = SerialEngine(task, method, data)
        without = Federation(task, method, engine, sampler=Only(Uniform(), absent))
        others = Finished(task, without, list(without.rounds()))
        assert flaky.bytes() == others.bytes()
        for one, other in zip(flaky.reports, others.reports, strict=True):
            assert received(one) == received(other)


def received(report):
    return [score for score in report.scores if score.which == "received"]


class Flaky(SerialEngine):
    """Some clients fail when they should learn."""

    def __init__(self, task, method, source, absent):
        super().__init__(task, method, source)
        self.absent = absent

    def run(self, jobs):
        for job in jobs:
            if job.learns and job.client in self.absent[job.round]:
                yield Outcome(job.client, error=Failure(job.client, "lost", "the cleaner pulled the plug"))
            else:
                yield self.site.work(job)


def test_a_round_that_is_repeated_is_learned_once():
    """Its clients start again from what they knew before it."""
    data = tiny_data()
    task, method = tiny_task(len(data), 3), make_method("ditto")
    engine = Moody(task, method, data)
    federation = Federation(task, method, engine, min_replies=4)
    repeated = Finished(task, federation, list(federation.rounds()))
    assert engine.rounds == [1, 2, 2, 3]
    assert repeated.bytes() == run_federation(make_method("ditto"), rounds=3).bytes()


class Moody(SerialEngine):
    """Client 3 does not answer when it is asked for the first time in round 2."""

    def __init__(self, task, method, source):
        super().__init__(task, method, source)
        self.rounds = []

    def run(self, jobs):
        outcomes = list(super().run(jobs))
        if jobs[0].learns:
            self.rounds.append(jobs[0].round)
            if self.rounds == [1, 2]:
                outcomes[3] = Outcome(3, error=Failure(3, "lost", "a power cut, after it had learned"))
        return outcomes


@pytest.mark.parametrize("deed", ["", "dies", "raises"])
def test_no_process_is_left_behind(deed):
    data, method = tiny_data(), Broken(deed=deed)
    task = tiny_task(len(data), 3)
    with ProcessEngine(task, method, data, 2) as engine:
        processes = [worker.process for worker in engine.workers]
        assert all(worker.is_alive() for worker in processes)
        try:
            list(Federation(task, method, engine).rounds())
        except (RunError, RuntimeError):
            assert deed
    for worker in processes:
        worker.join(timeout=10)
        assert not worker.is_alive()


class Where(FedAvg):
    """Clients remember the process they were visited in."""

    name = "where"

    def fit(self, client, w, down):
        client.state["process"] = float(os.getpid())
        return super().fit(client, w, down)


@pytest.mark.parametrize(("short", "stays"), [(0.0, False), (math.inf, True)])
def test_auto_sends_short_visits_nowhere(monkeypatch, short, stays):
    monkeypatch.setattr(AutoEngine, "short", short)
    finished = run_federation(Where(), rounds=2, engine=partial(AutoEngine, workers=2))
    assert {state["process"] == os.getpid() for state in finished.states.values()} == {stays}


def test_an_engine_is_one_file(tmp_path, monkeypatch):
    """Nothing else has to be told about it."""
    (tmp_path / "lazy.py").write_text(
        "from fedpac.engines.serial import SerialEngine\n\nclass Lazy(SerialEngine):\n    name = 'lazy'\n"
    )
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    found = engines._found()
    assert set(found) == {"lazy", *engines.ENGINES}
    monkeypatch.setattr(engines, "ENGINES", found)
    assert small(run__engine="lazy").run.engine == "lazy"
    data = tiny_data()
    with make_engine("lazy", tiny_task(len(data), 1), FedAvg(), data) as engine:
        assert type(engine).__name__ == "Lazy"


def test_an_unknown_engine_is_named():
    with pytest.raises(ConfigError, match="Did you mean 'serial'"):
        make_engine("serail", tiny_task(4), FedAvg(), tiny_data())


def test_where_ray_is_missing_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(FedpacError, match=r"pip install 'fedpac\[ray\]'"):
        make_engine("ray", tiny_task(4), FedAvg(), tiny_data())


def test_serial_leaves_torch_as_it_was():
    torch.set_num_threads(2)
    try:
        run_federation(FedAvg(), engine=SerialEngine)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


class Forgetful(FedAvg):
    """Does what newcomers do."""

    name = "forgetful"
    deed: str

    def fit(self, client, w, down):
        if self.deed == "sets an attribute":
            self.last = w
        return None if self.deed == "returns nothing" else super().fit(client, w, down)

    def send(self, server, client):
        return None if self.deed == "sends nothing" else super().send(server, client)

    def personal(self, client, down, up):
        return up.weights("w") if self.deed == "gives weights" else super().personal(client, down, up)


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("returns nothing", r"method forgetful: fit\(\) returned nothing; expected the trained weights"),
        ("sets an attribute", "method forgetful: 'last' is set on the method"),
        ("sends nothing", r"method forgetful: send\(\) returned nothing; expected a Message to the client"),
        ("gives weights", r"method forgetful: personal\(\) returned a dict; expected the model"),
    ],
)
def test_a_newcomers_mistake_names_the_method_and_what_was_expected(deed, told):
    with pytest.raises(ConfigError, match=told):
        run_federation(Forgetful(deed=deed), rounds=1)


def test_a_site_whose_folder_has_gone_is_an_outcome(tmp_path):
    data = tiny_data()
    task, method = tiny_task(len(data), 3), FedPer()
    server = Server(task)
    method.setup(server)
    site = Site(task, method, data, FolderStore(tmp_path / "site"))
    assert site.work(Job("learn", 0, 1, method.send(server, 0))).error is None
    shutil.rmtree(tmp_path / "site")
    error = site.work(Job("learn", 0, 2, method.send(server, 0))).error
    assert error is not None
    assert error.cause == "error"
    assert str(tmp_path / "site") in error.reason
