"""FedALA (Zhang et al., AAAI 2023): adaptive local aggregation."""

from typing import Annotated, ClassVar, TypeAlias, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.message import Message, Weights
from fedpac.methods.fedavg import FedAvg
from fedpac.models import trainable
from fedpac.training import features, shuffled_batches, train

Mask: TypeAlias = Weights  # W, one number in [0, 1] for each weight of the top layers

STEADY = 10  # epochs whose losses must agree


class FedALA(FedAvg):
    """FedAvg, but a client takes over only as much of the global top layers as lowers its own training loss.

    start_i = theta_i + (w - theta_i) * W_i          elementwise, in the top p tensors; below them start_i = w
    W_i     <- W_i - eta grad F_i(start_i) * (w - theta_i), kept within [0, 1], on `share` of the data
    theta_i <- E epochs of SGD on F_i from start_i          w <- sum_i n_i / n  theta_i

    W_i starts at one. The first time it is learned until the loss is steady, later for one epoch. p = 0 is FedAvg.
    """

    name: ClassVar[str] = "fedala"
    title: ClassVar[str] = "FedALA"
    family: ClassVar[str] = "multi-task"
    revision: ClassVar[int] = 2  # the mask is learned on features computed once

    layers: Annotated[int, Field(ge=0, le=10_000, description="p, number of top tensors that are mixed")] = 2
    eta: Annotated[float, Field(gt=0, le=1e3, description="learning rate of W")] = 1.0
    share: Annotated[float, Field(gt=0, le=1, description="share of the data used to learn W")] = 0.8
    steady: Annotated[
        float, Field(gt=0, description="the first time, stop learning W once the last ten losses vary less than this")
    ] = 0.1
    most_epochs: Annotated[int, Field(ge=1, le=10_000, description="epochs to learn W, the first time, at most")] = 50

    def local(self, client: Client, down: Message) -> Message:
        start, mask = self.mixed(client, down.weights("w"))
        theta = train(client, start)
        client.state["theta"] = theta
        if mask:
            client.state["mask"] = mask
        return Message(w=theta, n=client.n)

    def mixed(self, client: Client, w: Weights) -> tuple[Weights, Mask]:
        """The model to start from, and the mask that it was mixed with; without a model of its own, the global one."""
        top = [name for name, _ in trainable(client.model)][-self.layers :] if self.layers else []
        if not top or "theta" not in client.state:
            return w, {}
        own = client.weights("theta")
        known = "mask" in client.state
        mask = client.weights("mask") if known else {name: torch.ones_like(w[name]) for name in top}
        gap = {name: w[name] - own[name] for name in top}
        model = client.with_weights(w).eval()
        parameters = dict(trainable(model))
        tuned = [parameters[name] for name in top]

        def place() -> None:
            with torch.no_grad():
                for name in top:
                    parameters[name].copy_(own[name] + gap[name] * mask[name])

        x, y = client.train_set
        network: nn.Module = model
        if all(name.startswith("head.") for name in top):  # the body below stays the global one: one look is enough
            x, network = features(client, w), cast(nn.Module, model.head)
        place()
        losses: list[Tensor] = []
        for _ in range(1 if known else self.most_epochs):
            loss = x.new_zeros((), dtype=client.task.dtype)
            for index in self.batches(client, len(losses)):
                loss = client.criterion(network(x[index]), y[index])
                slopes = torch.autograd.grad(loss, tuned)
                mask = {
                    name: (mask[name] - self.eta * slope * gap[name]).clamp(0, 1)
                    for name, slope in zip(top, slopes, strict=True)
                }
                place()
            losses.append(loss.detach())
            if len(losses) > STEADY and float(torch.stack(losses[-STEADY:]).std(correction=0)) < self.steady:
                break
        return {**w, **{name: parameters[name].detach().clone() for name in top}}, mask

    def batches(self, client: Client, epoch: int) -> list[Tensor]:
        """One pass over the same share of the data, drawn anew in every round."""
        size = max(1, int(self.share * client.n))
        chosen = torch.randperm(client.n, generator=client.stream("mask samples"))[:size].to(client.device)
        order = client.stream(f"mask epoch {epoch}")
        return [chosen[at] for at in shuffled_batches(size, client.recipe.batch, 1, order, client.device)]

    def received(self, client: Client, down: Message) -> nn.Module:
        return client.with_weights(self.mixed(client, down.weights("w"))[0])

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return client.with_weights(up.weights("w"))
