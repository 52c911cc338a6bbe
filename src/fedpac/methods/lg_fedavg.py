"""LG-FedAvg (Liang et al., 2020): local representations, a global classifier."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fedpac.client import Client
from fedpac.message import Message, Weights
from fedpac.methods.base import Newcomer, returned
from fedpac.methods.fedavg import FedAvg
from fedpac.models import Section, section
from fedpac.replies import SAMPLES, Description, like
from fedpac.server import Server
from fedpac.weights import average_of


class LGFedAvg(FedAvg):
    """A shared head on a body of one's own, trained together.

    (theta_i, phi_i) <- E epochs of SGD on F_i from (theta_i, phi)          phi <- sum_i n_i / n  phi_i

    In the first `warm_start_rounds` the whole model is averaged, and every body starts from that average.
    """

    name: ClassVar[str] = "lg-fedavg"
    title: ClassVar[str] = "LG-FedAvg"
    family: ClassVar[str] = "decoupling"
    shared: ClassVar[Section] = "head"
    revision: ClassVar[int] = 2  # the server keeps body and head apart

    warm_start_rounds: Annotated[int, Field(ge=0, description="rounds of plain FedAvg before bodies become local")] = 0

    def setup(self, server: Server) -> None:
        super().setup(server)
        server.state["body"] = section(server.task.initial, "body")  # the one that newcomers start from
        server.state["parted"] = torch.zeros(server.task.clients, dtype=torch.bool)

    def send(self, server: Server, client: int) -> Message:
        everything = self.warm_start_rounds > 0 and not server.tensor("parted")[client]
        return Message(w=self.whole(server)) if everything else super().send(server, client)

    def whole(self, server: Server) -> Weights:
        return {**server.weights("body"), **server.weights("w")}

    def local(self, client: Client, down: Message) -> Message:
        w = returned(self, "fit", self.fit(client, self.assemble(client, down), down), dict, "the trained weights")
        if client.round <= self.warm_start_rounds:
            return Message(w=w, n=client.n)
        client.state["own"] = section(w, "body")
        return Message(w=section(w, "head"), n=client.n)

    def replies(self, server: Server, client: int, down: Message) -> Description:
        if server.round > self.warm_start_rounds:
            return super().replies(server, client, down)
        return {"w": like(self.whole(server), server.task.buffers), "n": SAMPLES}

    def sums(self) -> tuple[str, ...]:
        return () if self.warm_start_rounds else ("w",)  # a warm start takes the body out of the average

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        if server.round > self.warm_start_rounds:
            super().merge(server, replies)
            server.state["parted"] = server.tensor("parted").index_fill(0, torch.tensor(list(replies)), True)
        else:
            server.move("w", average_of(replies, "w"), old=self.whole(server))
            w = server.weights("w")
            server.state["w"], server.state["body"] = section(w, "head"), section(w, "body")

    def assemble(self, client: Client, down: Message) -> Weights:
        own = client.state.get("own", {})
        assert isinstance(own, dict)
        return {**section(client.initial, "body"), **down.weights("w"), **own}

    def grow(self, server: Server, before: int) -> None:
        parted = server.tensor("parted")
        server.state["parted"] = torch.cat([parted, parted.new_zeros(server.task.clients - before)])

    def newcomer(self) -> Newcomer:
        return Newcomer("the head and the common initial body; it trains them alone for one round")

    def welcome(self, server: Server, hello: Message | None = None) -> Message:
        return Message(w=self.whole(server))
