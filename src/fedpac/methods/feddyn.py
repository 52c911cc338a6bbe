"""FedDyn (Acar et al., ICLR 2021): local objectives that agree with the global one where they end."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedpac.client import Client
from fedpac.message import Message
from fedpac.methods.fedavg import FedAvg
from fedpac.replies import Description, like
from fedpac.server import Server
from fedpac.training import flatten, train, unflatten
from fedpac.weights import average


class FedDyn(FedAvg):
    """One global model; a linear term takes out of each client's objective what pulls it away from the others.

    client:  w_i <- E epochs of SGD on F_i(w_i) - <g_i, w_i> + alpha/2 |w_i - w|^2 from w
             g_i <- g_i - alpha (w_i - w)
    server:  h   <- h - alpha/N sum_i (w_i - w)          w <- mean_i w_i - h / alpha
    """

    name: ClassVar[str] = "feddyn"
    title: ClassVar[str] = "FedDyn"
    family: ClassVar[str] = "one global model"

    alpha: Annotated[float, Field(gt=0, le=1e3, description="strength of the regularisation")] = 0.1

    def setup(self, server: Server) -> None:
        super().setup(server)
        server.state["h"] = torch.zeros_like(flatten(server.task.initial, server.task.model))

    def local(self, client: Client, down: Message) -> Message:
        start = flatten(down.weights("w"), client.model)
        g = client.tensor("g", torch.zeros_like(start))

        def correct(parameters: Tensor, gradient: Tensor) -> None:
            gradient.sub_(g).add_(parameters - start, alpha=self.alpha)

        w = train(client, down.weights("w"), correction=correct)
        client.state["g"] = g - self.alpha * (flatten(w, client.model) - start)
        return Message(w=w)

    def replies(self, server: Server, client: int, down: Message) -> Description:
        return {"w": like(server.weights("w"), server.task.buffers)}

    def sums(self) -> tuple[str, ...]:
        return ()  # w is compared with the server's own

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        task = server.task
        old = flatten(server.weights("w"), task.model)
        mean = average({i: up.weights("w") for i, up in replies.items()}, dict.fromkeys(replies, 1.0))
        moved = flatten(mean, task.model) - old
        h = server.tensor("h") - self.alpha * len(replies) / task.clients * moved
        server.state["h"] = h
        server.move("w", unflatten(old + moved - h / self.alpha, mean, task.model))  # buffers are averaged
