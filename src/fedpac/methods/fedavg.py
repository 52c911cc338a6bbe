"""FedAvg (McMahan et al., AISTATS 2017), and the pattern of every method that shares a part of the model."""

from collections.abc import Mapping
from typing import ClassVar

from torch import nn

from fedpac.client import Client
from fedpac.message import Message, Weights
from fedpac.methods.base import Method, Newcomer, returned
from fedpac.models import Section, section, without
from fedpac.mods.dp import Kind
from fedpac.replies import SAMPLES, Description, like
from fedpac.server import Server
from fedpac.training import train
from fedpac.weights import average_of


class FedAvg(Method):
    """One global model, the average of what the clients make of it.

    w_i <- E epochs of SGD on F_i from w          w <- sum_i n_i / n  w_i
    """

    name = "fedavg"
    title = "FedAvg"
    family = "one global model"

    averages: ClassVar[bool] = True
    shared: ClassVar[Section] = "all"  # the part of the model that travels; the rest stays with the client

    def setup(self, server: Server) -> None:
        server.state["w"] = section(server.task.initial, self.shared)

    def send(self, server: Server, client: int) -> Message:
        return Message(w=server.weights("w"))

    def local(self, client: Client, down: Message) -> Message:
        w = returned(self, "fit", self.fit(client, self.assemble(client, down), down), dict, "the trained weights")
        if self.shared != "all":
            client.state["own"] = without(w, self.shared)
        return Message(w=section(w, self.shared), n=client.n)

    def fit(self, client: Client, w: Weights, down: Message) -> Weights:
        """Local training of the whole model."""
        return train(client, w)

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        server.move("w", average_of(replies, "w"))

    def replies(self, server: Server, client: int, down: Message) -> Description:
        return {"w": like(server.weights("w"), server.task.buffers), "n": SAMPLES}

    def sums(self) -> tuple[str, ...]:
        return ("w",)

    def protects(self) -> Mapping[str, Kind]:
        return {"w": "average", "n": "public"}

    def condense(self, replies: dict[int, Message]) -> dict[int, Message]:
        """An average of averages, where there is nothing to a merge but the average."""
        if type(self).merge is not FedAvg.merge or len(replies) < 2:
            return replies
        n = sum(up.number("n") for up in replies.values())
        return {min(replies): Message(w=average_of(replies, "w"), n=n)}

    def assemble(self, client: Client, down: Message) -> Weights:
        """The whole model of a client: the shared part as received, its own part as it left it."""
        own = client.state.get("own", without(client.initial, self.shared))
        assert isinstance(own, dict)
        return {**own, **down.weights("w")}

    def received(self, client: Client, down: Message) -> nn.Module:
        return client.with_weights(self.assemble(client, down))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return client.with_weights(self.assemble(client, up))

    def newcomer(self) -> Newcomer:
        if self.shared == "all":
            return Newcomer("the global model", "the global model")
        return Newcomer() if self.shared == "none" else Newcomer(f"the {self.shared}; it trains it alone for one round")

    def welcome(self, server: Server, hello: Message | None = None) -> Message:
        return Message(w=server.weights("w")) if self.shared != "none" else super().welcome(server, hello)

    def arrival(self, client: Client, down: Message) -> nn.Module:
        if self.shared == "all":  # whatever a participant adds of its own, a newcomer has none
            return client.with_weights(down.weights("w"))
        return self.personal(client, down, self.local(client, down))
