"""The process engine when things go wrong, and that it gives the serial engine's numbers."""

import math
import os
import signal
import time
from functools import partial

import pytest
import torch

from fedpac.engines import ENGINES, AutoEngine, ProcessEngine, SerialEngine, make_engine, process
from fedpac.errors import ConfigError, RunError, TrainingError
from fedpac.federation import Federation
from fedpac.methods.fedavg import FedAvg
from fedpac.methods.fedpac import FedPAC
from helpers import run_federation, tiny_data, tiny_task


class Broken(FedAvg):
    """Client 1 does `deed` in round 2."""

    name = "broken"
    deed: str

    def fit(self, client, w, down):
        if client.id == 1 and client.round == 2:
            if self.deed == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.deed == "raises":
                raise ZeroDivisionError("a mistake in a method")
            if self.deed == "packs what cannot be packed":
                w = {name: tensor.to_sparse() for name, tensor in w.items()}
                return w
            if self.deed == "nan":
                w = {name: torch.full_like(tensor, float("nan")) for name, tensor in w.items()}
        return super().fit(client, w, down)


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_workers_change_nothing(workers):
    serial = run_federation(FedPAC(), rounds=3)
    parallel = run_federation(FedPAC(), rounds=3, engine=partial(ProcessEngine, workers=workers))
    assert parallel.bytes() == serial.bytes()
    assert [r.scores for r in parallel.reports] == [r.scores for r in serial.reports]
    assert [(r.bytes_up, r.bytes_down) for r in parallel.reports] == [
        (r.bytes_up, r.bytes_down) for r in serial.reports
    ]


@pytest.mark.parametrize("name", ENGINES)
def test_weights_that_are_no_numbers_name_client_and_round(name):
    with pytest.raises(TrainingError, match="client 1, round 2"):
        run_federation(Broken(deed="nan"), rounds=3, engine=partial(make_engine, name))


def test_without_shared_memory_it_is_the_same(monkeypatch):
    monkeypatch.setattr(process, "shared_memory", lambda size: None)
    parallel = run_federation(FedPAC(), rounds=3, engine=partial(ProcessEngine, workers=2))
    assert parallel.bytes() == run_federation(FedPAC(), rounds=3).bytes()


def test_an_answer_that_cannot_be_packed_shows_its_traceback():
    with pytest.raises(RuntimeError, match=r"(?s)in a worker process.*[Ss]parse"):
        run_federation(Broken(deed="packs what cannot be packed"), rounds=3, engine=partial(ProcessEngine, workers=2))


def test_a_lost_round_is_not_gone_on_with():
    data, method = tiny_data(), Broken(deed="raises")
    task = tiny_task(len(data), 3)
    with ProcessEngine(task, method, data, 2) as engine:
        federation = Federation(task, method, engine)
        federation.step()
        with pytest.raises(RuntimeError, match="in a worker process"):
            federation.step()
        with pytest.raises(RunError, match="a round was lost"):
            federation.step()


def test_a_worker_that_dies_is_an_error_and_not_a_wait():
    start = time.monotonic()
    with pytest.raises(RunError, match="client 1 ended by itself"):
        run_federation(Broken(deed="dies"), rounds=3, engine=partial(ProcessEngine, workers=2))
    assert time.monotonic() - start < 20


def test_a_mistake_in_a_method_shows_its_traceback():
    with pytest.raises(RuntimeError, match=r"(?s)in a worker process.*ZeroDivisionError: a mistake in a method"):
        run_federation(Broken(deed="raises"), rounds=3, engine=partial(ProcessEngine, workers=2))


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


def test_an_unknown_engine_is_named():
    with pytest.raises(ConfigError, match="Did you mean 'serial'"):
        make_engine("serail", tiny_task(4), FedAvg(), tiny_data())


def test_serial_leaves_torch_as_it_was():
    torch.set_num_threads(2)
    try:
        run_federation(FedAvg(), engine=SerialEngine)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
