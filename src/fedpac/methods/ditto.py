"""Ditto (Li et al., ICML 2021)."""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import nn

from fedpac.client import Client
from fedpac.message import Message
from fedpac.methods.base import Which
from fedpac.methods.fedavg import FedAvg
from fedpac.training import flatten, proximal, train


class Ditto(FedAvg):
    """A personal model of each client's own, pulled towards the global one.

    w   <- FedAvg
    v_i <- E epochs of SGD on F_i(v_i) + lam/2 |v_i - w|^2 from v_i          w: as received this round

    Both models see the same batches. lam = 0 is Local-only.
    """

    name: ClassVar[str] = "ditto"
    title: ClassVar[str] = "Ditto"
    family: ClassVar[str] = "multi-task"
    reported: ClassVar[Which] = "personal"

    lam: Annotated[float, Field(ge=0, le=1e6, description="lambda, strength of the pull towards the global model")] = (
        1.0
    )

    def local(self, client: Client, down: Message) -> Message:
        pull = proximal(self.lam, flatten(down.weights("w"), client.model))
        client.state["v"] = train(client, client.weights("v"), correction=pull)
        return super().local(client, down)  # the global branch

    def received(self, client: Client, down: Message) -> nn.Module:
        return client.with_weights(client.weights("v"))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return client.with_weights(client.weights("v"))
