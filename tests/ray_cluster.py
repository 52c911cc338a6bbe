"""A pytest plugin: one Ray cluster of two nodes for all tests that need one. tests/cluster/test_ray.py loads it."""

import os
from typing import Any

import pytest

from fedpac.engines.ray import RayEngine

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


class TwoNodes:
    """The head, and a second node that can be lost. Each has one CPU, so each has one actor."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.small = {"num_cpus": 1, "object_store_memory": 80 << 20}
        self.cluster = Cluster(initialize_head=True, head_node_args={**self.small, "include_dashboard": False})
        self.second = self.add()

    def add(self):
        self.second = self.cluster.add_node(**self.small)
        return self.second

    def lose(self) -> None:
        self.cluster.remove_node(self.second, allow_graceful=False)


@pytest.fixture(scope="session")
def two_nodes():
    import ray

    nodes = TwoNodes()
    ray.init(address=nodes.cluster.address, log_to_driver=False, logging_level="ERROR")
    with pytest.MonkeyPatch.context() as patch:
        recycle(patch)
        yield nodes
    ray.shutdown()
    nodes.cluster.shutdown()


@pytest.fixture(autouse=True)
def _on_a_cluster(request):
    if request.node.get_closest_marker("ray"):
        request.getfixturevalue("two_nodes")


def recycle(patch: pytest.MonkeyPatch) -> None:
    """Actors outlive their engine and get ready for another's task: to start one takes seconds."""
    idle: list[Any] = []
    start, close = RayEngine._start, RayEngine.close

    def close_and_keep(engine: RayEngine) -> None:
        busy = [errand.actor for errand in engine.errands.values()]
        done = [actor for actor in engine.actors if actor.starting is None and actor not in busy]
        idle.extend(actor.handle for actor in done)
        engine.actors = [actor for actor in engine.actors if actor not in done]
        close(engine)

    patch.setattr(RayEngine, "_start", lambda engine: idle.pop() if idle else start(engine))
    patch.setattr(RayEngine, "close", close_and_keep)
