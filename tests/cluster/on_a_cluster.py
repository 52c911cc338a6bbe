"""The Ray engine on a cluster of two nodes, when all is well and when it is not. Run by test_ray.py."""

import importlib
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import ray as ray_library

from fedpac.engines import ray as module
from fedpac.engines.ray import RayEngine
from fedpac.errors import RunError
from fedpac.methods import make_method
from fedpac.methods.fedavg import FedAvg
from fedpac.testing.tiny import start_federation
from fedpac.testing.verdicts import difference
from helpers import Finished, run_federation, tiny_data
from test_engines import Broken

pytestmark = pytest.mark.ray


class Node(FedAvg):
    """Clients remember on which node they were visited."""

    name = "node"

    def fit(self, client, w, down):
        client.state["node"] = float(int(ray_library.get_runtime_context().get_node_id()[:12], 16))
        time.sleep(0.2)
        return super().fit(client, w, down)


def test_both_nodes_do_the_work():
    federation = start_federation(Node(), rounds=1_000, engine=RayEngine)
    with federation.engine as engine:
        assert len(nodes_of(federation)) == 2
        assert {client for actor in engine.actors for client in actor.clients} == {0, 1, 2, 3}


def nodes_of(federation):
    """Where clients were visited in a round that began when all actors had started."""
    engine, begun = federation.engine, time.monotonic()
    federation.step()
    while any(actor.starting is not None for actor in engine.actors) and time.monotonic() - begun < 120:
        federation.step()
    federation.step()
    return {state["node"] for state in engine.snapshot().values()}


def test_an_actor_that_dies_is_replaced_and_nothing_is_different(tmp_path):
    method = Broken(deed="dies", once=str(tmp_path / "died"))
    finished = run_federation(method, rounds=3, engine=RayEngine)
    assert (tmp_path / "died").exists()
    assert finished.bytes() == run_federation(FedAvg(), rounds=3).bytes()


def test_a_client_that_ends_every_actor_costs_its_reply_and_not_the_run():
    finished = run_federation(Broken(deed="dies"), rounds=3, min_replies=1, engine=RayEngine)
    assert [[(f.client, f.cause) for f in report.failed] for report in finished.reports] == [[], [(1, "lost")], []]
    assert "the Ray actor that trained client 1 was lost" in finished.reports[1].failed[0].reason


def test_a_client_that_is_late_costs_its_reply():
    late = partial(RayEngine, deadline=3.0)
    finished = run_federation(Broken(deed="sleeps"), rounds=2, min_replies=1, engine=late)
    (failure,) = finished.reports[1].failed
    assert (failure.client, failure.cause) == (1, "deadline")
    assert failure.reason == "client 1 did not reply within 3 s"


def test_a_method_that_the_nodes_cannot_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text(
        "from fedpac.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = 'mine'\n    title = 'Mine'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RunError, match=r"an actor cannot start.*No module named 'only_here'"):
        run_federation(importlib.import_module("only_here").Mine(), rounds=1, engine=RayEngine)


def test_where_no_cpu_is_free_it_says_so(monkeypatch):
    monkeypatch.setattr(module, "STARTUP", 1.0)
    monkeypatch.setattr(module, "GLANCE", 0.2)
    monkeypatch.setattr(RayEngine, "_start", lambda engine: big.remote())

    @ray_library.remote(num_cpus=64)
    class Big:
        def open(self, common):
            return {}

    big = Big
    with pytest.raises(RunError, match=r"no actor has started for 1 s: each needs one CPU, and .* cluster's 2"):
        run_federation(FedAvg(), rounds=1, engine=RayEngine)


@pytest.mark.slow
def test_a_node_that_is_lost_costs_nothing_and_another_takes_its_place(two_nodes, tmp_path):
    """Its client is visited again on the other node; when a node joins, its actor is started there."""
    method = Away(mark=str(tmp_path / "begun"), head=ray_library.get_runtime_context().get_node_id())
    watch = threading.Thread(target=lose_when, args=(two_nodes, tmp_path / "begun"))
    watch.start()
    finished = run_federation(method, rounds=3, data=tiny_data((6,) * 6), engine=RayEngine)
    watch.join()
    assert finished.bytes() == run_federation(FedAvg(), rounds=3, data=tiny_data((6,) * 6)).bytes()
    two_nodes.add()
    federation = start_federation(Node(), rounds=1_000, engine=RayEngine)
    with federation.engine:
        assert len(nodes_of(federation)) == 2


class Away(FedAvg):
    """On the node that is not the head, a client hangs until the node is gone."""

    name = "away"
    mark: str
    head: str

    def fit(self, client, w, down):
        if client.round == 2 and ray_library.get_runtime_context().get_node_id() != self.head:
            Path(self.mark).touch()
            time.sleep(600)
        return super().fit(client, w, down)


def lose_when(nodes, mark: Path) -> None:
    while not mark.exists():
        time.sleep(0.1)
    nodes.lose()


@pytest.mark.slow
def test_an_actor_that_is_killed_between_two_rounds():
    federation = start_federation(make_method("scaffold"), rounds=3, engine=RayEngine)
    with federation.engine as engine:
        reports = [federation.step()]
        ray_library.kill(engine.actors[0].handle)
        found = Finished(federation.task, federation, [*reports, *federation.rounds()])
    assert difference(found, run_federation(make_method("scaffold"), rounds=3)) == ""
