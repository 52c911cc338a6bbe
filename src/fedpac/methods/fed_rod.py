"""Fed-RoD (Chen and Chao, ICLR 2022): a generic and a personal predictor on one body."""

import copy
from typing import Annotated, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from fedpac.client import Client
from fedpac.message import Message, Weights
from fedpac.methods.base import Newcomer
from fedpac.methods.fedavg import FedAvg
from fedpac.models import load_into, section, weights_of
from fedpac.server import Server
from fedpac.training import Batch, Loss, train


class FedRoD(FedAvg):
    """The generic head g learns as if classes were balanced; the personal head h_i learns what is left to explain.

    theta_i, g_i <- CE(g(z) + gamma log n_i, y)              averaged; n_i are the client's class counts
    h_i          <- CE(stop(g(z)) + h_i(stop(z)), y)         z = f(x); stop() lets no gradient through
    prediction:  g(z) + h_i(z)

    linear: h_i is a head of the client's own.   hyper: h_i = H_nu(a_i) with a_i the client's class frequencies and
    nu averaged, so that a client which never trained has a personal head too.
    """

    name: ClassVar[str] = "fed-rod"
    title: ClassVar[str] = "Fed-RoD"
    family: ClassVar[str] = "decoupling"
    needs_classes: ClassVar[bool] = True

    variant: Annotated[Literal["linear", "hyper"], Field(description="how the personal head is made")] = "linear"
    gamma: Annotated[float, Field(ge=0, le=100, description="strength of the balanced softmax")] = 1.0
    hidden: Annotated[int, Field(ge=1, le=10_000, description="hidden units of the hyper-network")] = 32

    def setup(self, server: Server) -> None:
        super().setup(server)
        if self.variant == "hyper":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(server.stream("hyper-network").initial_seed())
                nobody = torch.zeros(server.task.classes, dtype=server.task.dtype)
                net = HyperHead(head_of(server.task.model), nobody, self.hidden)
            server.state["w"] = {**server.weights("w"), **as_personal(weights_of(net))}

    def local(self, client: Client, down: Message) -> Message:
        w = train(client, self.assemble(client, down), model=self.two_heads(client), loss=self.loss(client))
        if self.variant == "linear":
            client.state["own"] = {name: tensor for name, tensor in w.items() if name.startswith("personal.")}
        return Message(w={name: tensor for name, tensor in w.items() if name in down.weights("w")}, n=client.n)

    def loss(self, client: Client) -> Loss:
        # log n_i up to a constant, which softmax ignores: exactly zero where all classes are equally frequent
        counts = client.class_counts.to(client.task.dtype)
        prior = self.gamma * (counts / counts.max()).clamp(min=1e-12).log()

        def two_losses(model: nn.Module, batch: Batch) -> Tensor:
            assert isinstance(model, TwoHeads)
            z = model.body(batch.x)
            generic = model.head(z)
            both = generic.detach() + model.personal(z.detach())
            return batch.loss(generic + prior) + batch.loss(both)

        return two_losses

    def assemble(self, client: Client, down: Message) -> Weights:
        w = down.weights("w")
        if self.variant == "hyper":
            return w
        own = client.state.get("own", as_personal(section(client.initial, "head")))
        assert isinstance(own, dict)
        return {**w, **own}

    def two_heads(self, client: Client) -> "TwoHeads":
        body, head = cast(nn.Module, client.model.body), head_of(client.model)
        if self.variant == "linear":
            return TwoHeads(body, head, copy.deepcopy(head))
        frequencies = client.class_counts.to(client.task.dtype) / client.n
        return TwoHeads(body, head, HyperHead(head, frequencies, self.hidden).to(client.device))

    def received(self, client: Client, down: Message) -> nn.Module:
        if self.variant == "linear" and "own" not in client.state:
            return client.with_weights(down.weights("w"))  # no personal head yet: the generic one alone
        return load_into(self.two_heads(client), self.assemble(client, down))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return self.received(client, up)

    def newcomer(self) -> Newcomer:
        if self.variant == "linear":
            return Newcomer("the generic model", "the generic model")
        return Newcomer("both heads: the hyper-network generates one from its class frequencies", "the generic model")

    def arrival(self, client: Client, down: Message) -> nn.Module:
        if client.n:
            return self.received(client, down)
        generic = {name: tensor for name, tensor in down.weights("w").items() if name in client.initial}
        return client.with_weights(generic)


class TwoHeads(nn.Module):
    """body, head and personal head; predicts with the sum of the two heads."""

    def __init__(self, body: nn.Module, head: nn.Module, personal: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.personal = personal

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        return cast(Tensor, self.head(z) + self.personal(z))


class HyperHead(nn.Module):
    """A head whose weights a small network makes from the client's class frequencies."""

    def __init__(self, head: nn.Module, frequencies: Tensor, hidden: int) -> None:
        super().__init__()
        self.like = [head]  # in a list, so that its weights are not taken for this module's own
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.sizes = [p.numel() for p in head.parameters()]
        net = nn.Sequential(nn.Linear(len(frequencies), hidden), nn.ReLU(), nn.Linear(hidden, sum(self.sizes)))
        self.net = net.to(frequencies.dtype)

    def forward(self, z: Tensor) -> Tensor:
        return cast(Tensor, functional_call(self.like[0], self.made(), (z,)))

    def made(self) -> Weights:
        """The head's weights."""
        pieces = self.net(self.frequencies).split(self.sizes)
        return {n: piece.view_as(p) for (n, p), piece in zip(self.like[0].named_parameters(), pieces, strict=True)}

    def written(self) -> nn.Module:
        """A usual head that holds these weights."""
        head = copy.deepcopy(self.like[0])
        return load_into(head, {**weights_of(head), **self.made()})


def head_of(model: nn.Module) -> nn.Module:
    return cast(nn.Module, model.head)


def as_personal(weights: Weights) -> Weights:
    """A head's weights under the names they have in TwoHeads."""
    return {f"personal.{name.removeprefix('head.')}": tensor for name, tensor in weights.items()}
