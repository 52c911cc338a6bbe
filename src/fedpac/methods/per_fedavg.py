"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, NeurIPS 2020): a start from which one step of one's own helps most."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from fedpac.client import Client
from fedpac.message import Message, Weights
from fedpac.methods.base import Newcomer, Which
from fedpac.methods.fedavg import FedAvg
from fedpac.models import trainable
from fedpac.training import Batch, Loss, train


class PerFedAvg(FedAvg):
    """FedAvg of the loss after one step of adaptation (MAML).

    w_i <- E epochs of SGD on F_i(w - alpha grad F_i(w; B); B') from w          B, B': the halves of a batch
    w   <- sum_i n_i / n  w_i
    v_i <- `adapt_epochs` of SGD on F_i from w, at rate alpha: what client i predicts with

    first_order leaves out the second derivatives.
    """

    name: ClassVar[str] = "per-fedavg"
    title: ClassVar[str] = "Per-FedAvg"
    family: ClassVar[str] = "one global model"
    reported: ClassVar[Which] = "personal"

    alpha: Annotated[
        float | None, Field(gt=0, le=100, description="learning rate of the adaptation; default: training.lr")
    ] = None
    first_order: Annotated[bool, Field(description="first-order approximation: use the adapted gradient as it is")] = (
        True
    )
    adapt_epochs: Annotated[int, Field(ge=1, le=1000, description="epochs to adapt the model")] = 1

    def fit(self, client: Client, w: Weights, down: Message) -> Weights:
        return train(client, w, loss=after_a_step(self.rate(client), self.first_order))

    def rate(self, client: Client) -> float:
        return client.recipe.lr if self.alpha is None else self.alpha

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        adapted = train(client, down.weights("w"), epochs=self.adapt_epochs, lr=self.rate(client), purpose="adapt")
        return client.with_weights(adapted)

    def newcomer(self) -> Newcomer:
        return Newcomer("the global model, which it adapts", "the global model")

    def arrival(self, client: Client, down: Message) -> nn.Module:
        return self.personal(client, down, down) if client.n else super().arrival(client, down)


def after_a_step(alpha: float, first_order: bool) -> Loss:
    """The loss on the second half of a batch, after a step on the first; fewer than four samples are used for both."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        small = len(batch.y) < 4
        half, rest = (len(batch.y), 0) if small else (len(batch.y) // 2, len(batch.y) // 2)
        parameters = dict(trainable(model))
        before = batch.criterion(model(batch.x[:half]), batch.y[:half])
        slopes = torch.autograd.grad(before, list(parameters.values()), create_graph=not first_order, allow_unused=True)
        adapted = {
            name: p if slope is None else p - alpha * slope
            for (name, p), slope in zip(parameters.items(), slopes, strict=True)
        }
        after = functional_call(model, adapted, (batch.x[rest:],))
        return batch.criterion(after, batch.y[rest:])

    return loss
