"""A method of your own, complete in one file. From the folder that it is in:

    fedpac check own_method:Blend
    fedpac run --method own_method:Blend --dataset digits --rounds 20 --set method.mu=0.1

docs/own-method.md explains each of the functions.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import nn

from fedpac import Client, Message, Method, Server, train
from fedpac.message import Weights
from fedpac.replies import SAMPLES, Description, like
from fedpac.training import evaluate, flatten, proximal
from fedpac.weights import average_of


class Blend(Method):
    """One global model; every client starts from the best blend of it and of its own last one.

    client:  s_i  <- argmin over s in {0, 1/k, ..., 1} of F_i(own_i + s (w - own_i))
             w_i  <- E epochs of SGD on F_i(w_i) + mu/2 |w_i - start_i|^2 from start_i = own_i + s_i (w - own_i)
             own_i <- w_i
    server:  w <- sum_i n_i / n  w_i
    """

    name: ClassVar[str] = "blend"
    title: ClassVar[str] = "Blend"

    k: Annotated[int, Field(ge=1, le=100, description="steps between one's own model and the global one")] = 4
    mu: Annotated[float, Field(ge=0, le=1e6, description="strength of the pull towards the start")] = 0.01

    def setup(self, server: Server) -> None:
        server.state["w"] = server.task.initial

    def send(self, server: Server, client: int) -> Message:
        return Message(w=server.weights("w"))

    def local(self, client: Client, down: Message) -> Message:
        start = self.start(client, down)
        w = train(client, start, correction=proximal(self.mu, flatten(start, client.model)))
        client.state["own"] = w
        return Message(w=w, n=client.n)

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        server.state["w"] = average_of(replies, "w")

    def received(self, client: Client, down: Message) -> nn.Module:
        return client.with_weights(self.start(client, down))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return client.with_weights(up.weights("w"))

    def replies(self, server: Server, client: int, down: Message) -> Description:
        return {"w": like(server.weights("w")), "n": SAMPLES}

    def sums(self) -> tuple[str, ...]:
        return ("w",)

    def start(self, client: Client, down: Message) -> Weights:
        """The blend with the lowest loss on the client's training data."""
        if "own" not in client.state:
            return down.weights("w")
        blends = [blend(client.weights("own"), down.weights("w"), step / self.k) for step in range(self.k + 1)]
        return min(blends, key=lambda w: evaluate(client.with_weights(w), *client.train_set)[1])


def blend(own: Weights, shared: Weights, share: float) -> Weights:
    """own + share (shared - own); integer buffers, such as a batch counter, are the shared ones."""
    return {
        name: torch.lerp(own[name], tensor, share) if tensor.is_floating_point() else tensor
        for name, tensor in shared.items()
    }
