"""FedProto-G (Tan et al., AAAI 2022): clients share class prototypes and no weights."""

from collections.abc import Mapping
from typing import ClassVar

from fedpac.client import Client
from fedpac.collaboration.centroids import Centroids, global_centroids, renewed
from fedpac.message import Message, Weights
from fedpac.methods.base import centroids_like
from fedpac.methods.fedproto_l import FedProtoL, prototypes
from fedpac.mods.dp import Kind
from fedpac.replies import Description
from fedpac.server import Server
from fedpac.training import train


class FedProtoG(FedProtoL):
    """Every client trains a whole model of its own, its features drawn to the class means of all clients.

    client:  w_i    <- E epochs of SGD on F_i + lam/n_i sum_l |f(x_l) - c_{y_l}|^2 / d from w_i
             c_{ik} <- mean feature of class k with the new body
    server:  c_k    <- sum_i n_{ik} c_{ik} / sum_i n_{ik}
    """

    name: ClassVar[str] = "fedproto-g"
    title: ClassVar[str] = "FedProto-G"
    family: ClassVar[str] = "prototypes"

    def send(self, server: Server, client: int) -> Message:
        return Message(**server.state)

    def local(self, client: Client, down: Message) -> Message:
        up = super().local(client, down)
        return Message(**up, prototypes=prototypes(client, self.assemble(client, up)))

    def fit(self, client: Client, w: Weights, down: Message) -> Weights:
        return train(client, w, loss=self.loss(down.weights("prototypes") if "prototypes" in down else None))

    def replies(self, server: Server, client: int, down: Message) -> Description:
        return {**super().replies(server, client, down), "prototypes": centroids_like(server, "prototypes")}

    def protects(self) -> Mapping[str, Kind]:
        return {}

    def sums(self) -> tuple[str, ...]:
        return ()

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        centroids = global_centroids([Centroids.from_tensors(up.weights("prototypes")) for up in replies.values()])
        if "prototypes" in server.state:
            centroids = renewed(Centroids.from_tensors(server.weights("prototypes")), centroids)
        server.state["prototypes"] = centroids.to_tensors()
