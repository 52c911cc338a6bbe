"""MOON (Li, He, Song, CVPR 2021): model-contrastive federated learning."""

from typing import Annotated, ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.message import Message
from fedpac.methods.fedavg import FedAvg
from fedpac.training import Batch, Loss, cross_entropy, train


class MOON(FedAvg):
    """FedAvg whose features are drawn to those of the received model and away from those of the client's last one.

    w_i <- E epochs of SGD on F_i - mu mean log(e^{s(z, z_g)/tau} / (e^{s(z, z_g)/tau} + e^{s(z, z_p)/tau})) from w
    z, z_g, z_p: features with the model in training, the received one and the one this client ended with last time;
    s: cosine          w <- sum_i n_i / n  w_i

    A client that has not trained before has nothing to be drawn away from. mu = 0 is FedAvg.
    """

    name: ClassVar[str] = "moon"
    title: ClassVar[str] = "MOON"
    family: ClassVar[str] = "one global model"

    mu: Annotated[float, Field(ge=0, le=1e6, description="strength of the contrastive loss")] = 1.0
    tau: Annotated[float, Field(gt=0, le=1e3, description="temperature")] = 0.5

    def local(self, client: Client, down: Message) -> Message:
        w = train(client, down.weights("w"), loss=self.loss(client, down))
        client.state["last"] = w
        return Message(w=w, n=client.n)

    def loss(self, client: Client, down: Message) -> Loss:
        if not self.mu or "last" not in client.state:
            return cross_entropy
        received, last = (client.own_model(w).eval() for w in (down.weights("w"), client.weights("last")))

        def contrastive(model: nn.Module, batch: Batch) -> Tensor:
            z: Tensor = body(model)(batch.x)
            with torch.no_grad():
                near, far = (body(other)(batch.x).flatten(1) for other in (received, last))
            scores = torch.stack([F.cosine_similarity(z.flatten(1), other) for other in (near, far)], dim=1) / self.tau
            contrast = F.cross_entropy(scores, torch.zeros_like(batch.index))
            return batch.loss(cast(nn.Module, model.head)(z)) + self.mu * contrast

        return contrastive


def body(model: nn.Module) -> nn.Module:
    return cast(nn.Module, model.body)
