"""What a method is made of and what a round of it costs: measured by running it, so that it is never out of date.

Two rounds of a small federation with the paper's Fashion-MNIST network; the second is counted, when every method sends
all that it ever sends. Message sizes do not depend on the amount of data, except where a method sends its data's parts.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fedpac.data.clients import Scenario
from fedpac.data.config import DataConfig
from fedpac.data.scenario import build
from fedpac.engines.site import Site, audience
from fedpac.message import Message, Part
from fedpac.methods import Method
from fedpac.networks import build_model
from fedpac.recipe import Recipe
from fedpac.server import Server
from fedpac.task import State, Task

CLIENTS, ROUNDS = 3, 2
WORK = {
    "full": "forward and backward through the whole network",
    "head": "forward and backward through the head only",
    "forward": "forward only",
}


@dataclass
class Cost:
    """Of one client in one round."""

    down: dict[str, int] = field(default_factory=dict)  # parts of the server's message, in bytes
    up: dict[str, int] = field(default_factory=dict)
    on_client: dict[str, int] = field(default_factory=dict)  # what a client keeps between rounds, in bytes
    on_server: dict[str, int] = field(default_factory=dict)
    training: dict[str, float] = field(default_factory=dict)  # passes over the client's training data, by WORK
    predicting: dict[str, float] = field(default_factory=dict)  # the same, to get ready for prediction
    summed: list[str] = field(default_factory=list)  # parts of a reply of which the server needs weighted sums only
    read: list[str] = field(default_factory=list)  # parts that it must be able to read

    @property
    def bytes_down(self) -> int:
        return sum(self.down.values())

    @property
    def bytes_up(self) -> int:
        return sum(self.up.values())


class Meter:
    """Counts the samples that go through a network and through every copy of it, by what is done with them."""

    def __init__(self, model: nn.Module) -> None:
        self.counts = dict.fromkeys(WORK, 0)
        for part in ("body", "head"):
            module = model.get_submodule(part)
            module.register_forward_hook(lambda module, inputs, output, part=part: self._see(part, inputs, output))

    def _see(self, part: str, inputs: Any, output: Any) -> None:
        if not isinstance(output, torch.Tensor):
            return
        kind = "forward"
        if output.requires_grad:
            kind = "full" if part == "body" else "head"
        if part == "head" and kind == "head" and isinstance(inputs[0], torch.Tensor) and inputs[0].requires_grad:
            return  # seen in the body already
        if part == "head" and kind == "forward":
            return  # negligible
        self.counts[kind] += len(output)

    def passes(self, samples: int) -> dict[str, float]:
        """What was counted since the last call, in passes over that many samples."""
        counted = {kind: n / samples for kind, n in self.counts.items() if n}
        self.counts = dict.fromkeys(WORK, 0)
        return counted


def measure_cost(method: Method, scenario: Scenario | None = None) -> Cost:
    """Run two rounds and say what the second one moved, kept and computed."""
    if scenario is None:
        config = DataConfig(dataset="digits", clients=CLIENTS, samples=20, test_samples=4)
        scenario = build(config, seed=0)
    model = build_model("paper", scenario.shape, scenario.classes, seed=0)
    task = Task(model, scenario.classes, Recipe(batch=10), 0, len(scenario.clients), ROUNDS)
    meter = Meter(task.model)
    server, states = Server(task), {i: State() for i in range(task.clients)}
    site = Site(task, method, scenario.clients)
    method.setup(server)
    cost = Cost()
    for round in range(1, ROUNDS + 1):
        server.round = round
        replies: dict[int, Message] = {}
        for i, data in enumerate(scenario.clients):
            client = site.open(i, round, states[i])
            down = method.send(server, i)
            meter.passes(1)
            replies[i] = method.local(client, down)
            cost.training = meter.passes(len(data.train))
            states[i] = client.state
            if method.reported == "personal":
                method.personal(audience(client), down, replies[i])
            else:
                method.received(audience(client), down)
            cost.predicting = meter.passes(len(data.train))
            cost.down, cost.up = _sizes(dict(down)), _sizes(dict(replies[i]))
        method.merge(server, replies)  # all at once even where a method hears them in waves: nothing is larger for it
    cost.summed = list(method.sums())
    cost.read = [part for part, size in cost.up.items() if size and part not in cost.summed]
    cost.on_client = _sizes(states[0])
    cost.on_server = _sizes(server.state)
    return cost


def _sizes(parts: dict[str, Part]) -> dict[str, int]:
    """Bytes of each part; parts that differ only in a client's number are put together."""
    sizes: dict[str, int] = {}
    for name, part in parts.items():
        common = re.sub(r"\d+", "<i>", name) if re.search(r"[._ -]\d+$|^\d+$", name) else name
        sizes[common] = sizes.get(common, 0) + Message(part=part).nbytes
    return sizes
