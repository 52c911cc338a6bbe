"""FedAS (Yang, Huang, Ye, CVPR 2024): clients that come back first find their way into the new body."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.collaboration.centroids import Centroids, local_centroids
from fedpac.message import Message, Weights
from fedpac.methods.fedper import FedPer
from fedpac.models import section, trainable
from fedpac.mods.dp import Kind
from fedpac.replies import HUGE, Description, NumberLike
from fedpac.server import Server
from fedpac.training import Batch, Loss, features, train
from fedpac.weights import average


class FedAS(FedPer):
    """FedPer whose bodies are drawn to what the client's head is used to, and weighed by how much they still learn.

    client:  theta           <- 1 epoch of SGD on mean |f(x) - c_{i,y}|^2 / d from the body it received
             (theta_i, phi_i) <- E epochs of SGD on F_i from (theta, phi_i)
             c_{ik}          <- mean feature of class k with theta_i, kept for the next time
             t_i             <- mean over samples of |grad_theta log p(y | x)|^2, the trace of the Fisher information
    server:  theta           <- sum_i t_i theta_i / sum_i t_i

    The trace is of single samples' gradients: the public code squares the gradient of a batch's mean, which is smaller
    the larger the batch. A client predicts with the body that it has aligned.
    """

    name: ClassVar[str] = "fedas"
    title: ClassVar[str] = "FedAS"
    family: ClassVar[str] = "decoupling"
    needs_classes: ClassVar[bool] = True

    align_epochs: Annotated[int, Field(ge=0, le=1000, description="epochs to align the body")] = 1
    fisher_samples: Annotated[int, Field(ge=1, le=1_000_000, description="samples used to estimate the trace")] = 64

    def local(self, client: Client, down: Message) -> Message:
        w = train(client, self.aligned(client, down))
        client.state["own"] = section(w, "head")
        centroids = local_centroids(features(client, w), client.train_set[1], client.classes)
        client.state["centroids"] = centroids.to_tensors()
        return Message(w=section(w, "body"), n=client.n, fisher=self.fisher(client, w))

    def aligned(self, client: Client, down: Message) -> Weights:
        w = self.assemble(client, down)
        if "centroids" not in client.state or not self.align_epochs:
            return w
        targets = Centroids.from_tensors(client.weights("centroids")).means
        return train(client, w, part="body", loss=drawn_to(targets), epochs=self.align_epochs, purpose="align")

    def fisher(self, client: Client, w: Weights) -> float:
        """Mean squared norm of single samples' gradients by the body, in evaluation mode."""
        model = client.with_weights(w).eval()
        parameters = [p for _, p in trainable(model, "body")]
        if not parameters:
            return 1.0
        x, y = client.train_set
        chosen = torch.randperm(client.n, generator=client.stream("fisher"))[: self.fisher_samples].to(client.device)
        total = torch.zeros((), dtype=torch.float64, device=client.device)
        for sample in torch.split(chosen, 1):
            slopes = torch.autograd.grad(F.cross_entropy(model(x[sample]), y[sample]), parameters, allow_unused=True)
            total += sum(slope.double().square().sum() for slope in slopes if slope is not None)
        return float(total / len(chosen))

    def replies(self, server: Server, client: int, down: Message) -> Description:
        return {**super().replies(server, client, down), "fisher": NumberLike(0, HUGE)}

    def protects(self) -> Mapping[str, Kind]:
        return {}  # nobody has worked out what the importance of its weights tells

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        traces = {i: up.number("fisher") for i, up in replies.items()}
        if not sum(traces.values()):  # nobody has anything to learn any more
            return super().merge(server, replies)
        server.move("w", average({i: up.weights("w") for i, up in replies.items()}, traces))

    def received(self, client: Client, down: Message) -> nn.Module:
        return client.with_weights(self.aligned(client, down))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return client.with_weights(self.assemble(client, up))


def drawn_to(targets: Tensor) -> Loss:
    """Mean over batch and dimensions of (f(x) - target_y)^2."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        z: Tensor = cast(nn.Module, model.body)(batch.x).flatten(1)
        return (z - targets.index_select(0, batch.y)).square().mean()

    return loss
