"""FedEM (Marfoq et al., NeurIPS 2021)."""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.message import Message, Weights
from fedpac.methods.base import Method, Newcomer
from fedpac.models import reinitialised
from fedpac.randomness import stream_seed
from fedpac.replies import SAMPLES, Description, like
from fedpac.server import Server
from fedpac.training import logits, train, weighted_cross_entropy
from fedpac.weights import average_of


class FedEM(Method):
    """Every client is a mixture, of its own proportions, of M global models.

    E-step:  q_sm <- pi_im exp(-l(h_m(x_s), y_s)) / (sum over the components)        for every sample s
             pi_i <- mean_s q_s
    M-step:  w_im <- E epochs of SGD on mean_s q_sm l(h_m(x_s), y_s) from w_m
    server:  w_m  <- sum_i n_i / n  w_im
    predict: sum_m pi_im softmax(h_m(x))

    A client runs an E-step whenever it receives components, also when it only predicts. All components see the same
    batches. M = 1 is FedAvg.
    """

    name: ClassVar[str] = "fedem"
    title: ClassVar[str] = "FedEM"
    family: ClassVar[str] = "mixture"
    needs_classes: ClassVar[bool] = True

    averages: ClassVar[bool] = True

    components: Annotated[int, Field(ge=1, le=1000, description="M, number of components")] = 3

    def setup(self, server: Server) -> None:
        task = server.task
        server.state["w0"] = task.initial
        for m in range(1, self.components):
            server.state[f"w{m}"] = reinitialised(task.model, stream_seed(task.seed, f"init {m}"))

    def send(self, server: Server, client: int) -> Message:
        return Message(**{f"w{m}": server.weights(f"w{m}") for m in range(self.components)})

    def local(self, client: Client, down: Message) -> Message:
        q, client.state["pi"] = self.e_step(client, down)
        client.state["q"] = q
        tuned = self.m_step(client, down, q)
        return Message(**{f"w{m}": w for m, w in enumerate(tuned)}, n=client.n)

    def e_step(self, client: Client, down: Message) -> tuple[Tensor, Tensor]:
        """q (n, M) and pi (M), from the client's last pi, or equal shares if it has none."""
        x, y = client.train_set
        pi = client.tensor("pi", self.equal_shares(client))
        losses = [
            F.cross_entropy(logits(client.with_weights(w), x).double(), y, reduction="none") for w in self.parts(down)
        ]
        return expectation(torch.stack(losses, dim=1), pi)

    def equal_shares(self, client: Client) -> Tensor:
        return torch.full((self.components,), 1 / self.components, dtype=torch.float64, device=client.device)

    def m_step(self, client: Client, down: Message, q: Tensor, epochs: int | None = None) -> list[Weights]:
        return [
            train(client, w, loss=weighted_cross_entropy(q[:, m].to(client.task.dtype)), epochs=epochs)
            for m, w in enumerate(self.parts(down))
        ]

    def parts(self, message: Message) -> list[Weights]:
        return [message.weights(f"w{m}") for m in range(self.components)]

    def replies(self, server: Server, client: int, down: Message) -> Description:
        parts = [f"w{m}" for m in range(self.components)]
        return {**{w: like(server.weights(w), server.task.buffers) for w in parts}, "n": SAMPLES}

    def sums(self) -> tuple[str, ...]:
        return tuple(f"w{m}" for m in range(self.components))

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        for m in range(self.components):
            server.move(f"w{m}", average_of(replies, f"w{m}"))

    def received(self, client: Client, down: Message) -> nn.Module:
        return self.mixture(client, self.parts(down), self.e_step(client, down)[1])

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return self.mixture(client, self.parts(up), client.tensor("pi"))

    def mixture(self, client: Client, parts: list[Weights], pi: Tensor) -> nn.Module:
        return Mixture([client.own_model(w) for w in parts], pi)

    def newcomer(self) -> Newcomer:
        labelled = "the components, with mixture weights from an E-step on its samples"
        return Newcomer(labelled, "the components with equal weights")

    def welcome(self, server: Server, hello: Message | None = None) -> Message:
        return Message(**server.state)

    def arrival(self, client: Client, down: Message) -> nn.Module:
        if client.n:
            return self.received(client, down)
        return self.mixture(client, self.parts(down), self.equal_shares(client))


def expectation(losses: Tensor, pi: Tensor) -> tuple[Tensor, Tensor]:
    """q_sm proportional to pi_m exp(-losses_sm), and its mean over the samples."""
    q = (pi.log() - losses).softmax(dim=1)
    return q, q.mean(dim=0)


class Mixture(nn.Module):
    """log sum_m pi_m softmax(h_m(x)): probabilities are mixed, not logits."""

    def __init__(self, components: list[nn.Module], pi: Tensor) -> None:
        super().__init__()
        self.components = nn.ModuleList(components)
        self.register_buffer("log_pi", pi.log())

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.log_pi, Tensor)
        each = [F.log_softmax(h(x), dim=1) for h in self.components]
        return torch.stack(each, dim=2).add(self.log_pi.to(each[0].dtype)).logsumexp(dim=2)
