"""FedBABU (Oh, Kim, Yun, ICLR 2022): body aggregation, body update."""

from typing import ClassVar

from fedpac.client import Client
from fedpac.message import Message
from fedpac.methods.base import Newcomer
from fedpac.methods.fedavg_ft import FedAvgFT
from fedpac.models import Section, section
from fedpac.training import train


class FedBABU(FedAvgFT):
    """Only the body learns in the federation, under the random head everybody began with; then all is fine-tuned.

    theta_i <- E epochs of SGD on F_i(theta_i, phi_0) from theta          theta <- sum_i n_i / n  theta_i
    (theta, phi_0) -> epochs of SGD on F_i -> what client i predicts with
    """

    name: ClassVar[str] = "fedbabu"
    title: ClassVar[str] = "FedBABU"
    family: ClassVar[str] = "decoupling"
    shared: ClassVar[Section] = "body"

    def local(self, client: Client, down: Message) -> Message:
        # No client ever stores a head, so assemble() gives all of them the initial one.
        w = train(client, self.assemble(client, down), part="body")
        return Message(w=section(w, "body"), n=client.n)

    def newcomer(self) -> Newcomer:
        return Newcomer("the body with the common initial head; it fine-tunes both")
