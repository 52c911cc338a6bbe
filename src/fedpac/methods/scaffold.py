"""SCAFFOLD (Karimireddy et al., ICML 2020), option II."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fedpac.client import Client
from fedpac.message import Message
from fedpac.methods.fedavg import FedAvg
from fedpac.models import trainable
from fedpac.mods.dp import Kind
from fedpac.replies import Description, like, norm, tensor_like
from fedpac.server import Server
from fedpac.training import controlled, flatten, train
from fedpac.weights import average


class Scaffold(FedAvg):
    """One global model; control variates take the clients' drift out of every local step.

    client:  g <- g - c_i + c in every step of SGD on F_i from w
             c_i' <- (1/K) sum_k g_k, the mean of the K gradients before correction
    server:  w <- w + lr_g mean_i (w_i - w)          c <- c + 1/N sum_i (c_i' - c_i)

    The paper's c_i' = c_i - c + (w - w_i) / (K lr) is this mean when steps are plain SGD. With momentum or weight
    decay that quotient would count gradients several times over and take in the decay, so they are summed directly.
    """

    name: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD"
    family: ClassVar[str] = "one global model"

    server_lr: Annotated[float, Field(gt=0, le=100, description="lr_g, how far the server follows the mean")] = 1.0

    def setup(self, server: Server) -> None:
        super().setup(server)
        server.state["c"] = torch.zeros_like(flatten(server.task.initial, server.task.model))

    def send(self, server: Server, client: int) -> Message:
        return Message(w=server.weights("w"), c=server.tensor("c"))

    def local(self, client: Client, down: Message) -> Message:
        c = down.tensor("c")
        own = client.tensor("c", torch.zeros_like(c))
        drift = controlled(c - own)
        w = train(client, down.weights("w"), correction=drift)
        client.state["c"] = drift.mean
        return Message(w=w, dc=drift.mean - own)

    def grow(self, server: Server, before: int) -> None:
        server.state["c"] = server.tensor("c") * (before / server.task.clients)  # a mean: those who came have zeros

    def replies(self, server: Server, client: int, down: Message) -> Description:
        c, w = server.tensor("c"), flatten(server.weights("w"), server.task.model)
        dc = tensor_like(c, scale=max(norm(c), norm(w)))
        return {"w": like(server.weights("w"), server.task.buffers), "dc": dc}

    def sums(self) -> tuple[str, ...]:
        return ()  # w is a difference to the server's own, and c is added up element by element

    def protects(self) -> Mapping[str, Kind]:
        return {}  # c and w say the same thing twice

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        w, c = server.weights("w"), server.tensor("c")
        mean = average({i: up.weights("w") for i, up in replies.items()}, dict.fromkeys(replies, 1.0))
        moved = {name: torch.lerp(w[name], mean[name], self.server_lr) for name, _ in trainable(server.task.model)}
        server.move("w", {**mean, **moved})  # buffers are averaged, not followed
        server.state["c"] = c + sum(up.tensor("dc") for up in replies.values()) / server.task.clients
