"""FedDBE (Zhang et al., NeurIPS 2023): what is a client's own is taken out of the features by a mean of its own."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.message import Message, Weights
from fedpac.methods.fedavg import FedAvg
from fedpac.models import load_into
from fedpac.mods.dp import Kind
from fedpac.replies import EXCESS_OF_MEANS, Description, TensorLike
from fedpac.server import Server
from fedpac.training import Batch, Loss, features, train
from fedpac.weights import average

OWN = "shift"  # the name of m_i among the weights


class FedDBE(FedAvg):
    """FedAvg whose clients add a trained vector of their own to the features, which keep to one common mean.

    logits = g(f(x) + m_i)                                          m_i never leaves the client
    (theta_i, phi_i, m_i) <- E epochs of SGD on F_i + kappa/2 mean over d of (z - z_g)^2 from (theta, phi, m_i)
    z   <- (1 - momentum) z + momentum mean of f over the batch, from zero in every round
    z_g <- sum_i n_i z_i / n with z_i the mean feature of client i after the first round; it then stays

    In the first round there is no z_g yet, and m_i stays zero. kappa = 0 without m_i would be FedAvg.
    """

    name: ClassVar[str] = "feddbe"
    title: ClassVar[str] = "FedDBE"
    family: ClassVar[str] = "decoupling"

    kappa: Annotated[float, Field(ge=0, le=1e6, description="strength of the pull towards the common mean")] = 5.0
    momentum: Annotated[float, Field(gt=0, le=1, description="weight of the batch in the running mean")] = 1.0

    def send(self, server: Server, client: int) -> Message:
        if "mean" not in server.state:
            return super().send(server, client)
        return Message(w=server.weights("w"), mean=server.tensor("mean"))

    def local(self, client: Client, down: Message) -> Message:
        w = down.weights("w")
        if "mean" not in down:
            w = train(client, w)
            return Message(w=w, n=client.n, mean=features(client, w).flatten(1).double().mean(0).to(client.task.dtype))
        shift = self.shift(client, down.tensor("mean"))
        tuned = train(client, {**w, OWN: shift}, model=Shifted(client.model, shift), loss=self.loss(down))
        client.state["shift"] = tuned.pop(OWN)
        return Message(w=tuned, n=client.n)

    def shift(self, client: Client, mean: Tensor) -> Tensor:
        return client.tensor("shift", torch.zeros_like(mean))

    def loss(self, down: Message) -> Loss:
        mean = down.tensor("mean")
        running = torch.zeros_like(mean)

        def debiased(model: nn.Module, batch: Batch) -> Tensor:
            nonlocal running
            z = cast(nn.Module, model.body)(batch.x)
            moving = (1 - self.momentum) * running + self.momentum * z.flatten(1).mean(0)
            running = moving.detach()
            pull = 0.5 * (moving - mean).square().mean()
            loss: Tensor = batch.loss(cast(Shifted, model).head_of(z)) + self.kappa * pull
            return loss

        return debiased

    def replies(self, server: Server, client: int, down: Message) -> Description:
        described = super().replies(server, client, down)
        if "mean" in server.state:
            return described
        mean = TensorLike(server.task.dtype, (server.task.features,), scale=0.0, excess=EXCESS_OF_MEANS)
        return {**described, "mean": mean}

    def protects(self) -> Mapping[str, Kind]:
        return {}  # nobody has worked out what its mean features tell

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        super().merge(server, replies)
        if "mean" not in server.state:
            means: dict[int, Weights] = {i: {"mean": up.tensor("mean")} for i, up in replies.items()}
            server.state["mean"] = average(means, {i: up.number("n") for i, up in replies.items()})["mean"]

    def received(self, client: Client, down: Message) -> nn.Module:
        if "shift" not in client.state:
            return client.with_weights(down.weights("w"))
        shift = client.tensor("shift")
        return load_into(Shifted(client.model, shift), {**down.weights("w"), OWN: shift})

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return self.received(client, up)


class Shifted(nn.Module):
    """A body and a head, and a vector that is added to the features in between."""

    def __init__(self, model: nn.Module, shift: Tensor) -> None:
        super().__init__()
        self.body = cast(nn.Module, model.body)
        self.head = cast(nn.Module, model.head)
        self.shift = nn.Parameter(shift.clone())

    def head_of(self, z: Tensor) -> Tensor:
        return cast(Tensor, self.head(z + self.shift.view(z.shape[1:])))

    def forward(self, x: Tensor) -> Tensor:
        return self.head_of(self.body(x))
