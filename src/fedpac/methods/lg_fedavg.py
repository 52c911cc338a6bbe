"""LG-FedAvg (Liang et al., 2020): local representations, a global classifier."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fedpac.client import Client
from fedpac.message import Message, Weights
from fedpac.methods.fedavg import FedAvg
from fedpac.models import Section, section
from fedpac.server import Server


class LGFedAvg(FedAvg):
    """A shared head on a body of one's own, trained together.

    (theta_i, phi_i) <- E epochs of SGD on F_i from (theta_i, phi)          phi <- sum_i n_i / n  phi_i

    In the first `warm_start_rounds` the whole model is averaged, and every body starts from that average.
    """

    name: ClassVar[str] = "lg-fedavg"
    title: ClassVar[str] = "LG-FedAvg"
    family: ClassVar[str] = "decoupling"
    shared: ClassVar[Section] = "head"

    warm_start_rounds: Annotated[int, Field(ge=0, description="rounds of plain FedAvg before the bodies part")] = 0

    def setup(self, server: Server) -> None:
        server.state["w"] = dict(server.task.initial)  # the body in it is the one that newcomers start from
        server.state["parted"] = torch.zeros(server.task.clients, dtype=torch.bool)

    def send(self, server: Server, client: int) -> Message:
        everything = self.warm_start_rounds > 0 and not server.tensor("parted")[client]
        return Message(w=section(server.weights("w"), "all" if everything else "head"))

    def local(self, client: Client, down: Message) -> Message:
        w = self.fit(client, self.assemble(client, down), down)
        if client.round <= self.warm_start_rounds:
            return Message(w=w, n=client.n)
        client.state["own"] = section(w, "body")
        return Message(w=section(w, "head"), n=client.n)

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        w, parted = server.weights("w"), server.tensor("parted")
        super().merge(server, replies)
        server.state["w"] = {**w, **server.weights("w")}
        if server.round > self.warm_start_rounds:
            server.state["parted"] = parted.index_fill(0, torch.tensor(list(replies)), True)

    def assemble(self, client: Client, down: Message) -> Weights:
        own = client.state.get("own", {})
        assert isinstance(own, dict)
        return {**section(client.initial, "body"), **down.weights("w"), **own}
