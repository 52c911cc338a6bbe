"""FedProto-L: FedProto's loss without its server, as the FedPAC paper compares it."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fedpac.client import Client
from fedpac.collaboration.centroids import Centroids, local_centroids
from fedpac.message import Message, Weights
from fedpac.methods.local import Local
from fedpac.training import Loss, aligned_cross_entropy, cross_entropy, features, train


class FedProtoL(Local):
    """Local-only training whose features are drawn to the client's own class means; nothing is exchanged.

    w_i    <- E epochs of SGD on F_i + lam/n_i sum_l |f(x_l) - c_{i,y_l}|^2 / d from w_i
    c_{ik} <- mean feature of class k with the new body
    """

    name: ClassVar[str] = "fedproto-l"
    title: ClassVar[str] = "FedProto-L"
    family: ClassVar[str] = "prototypes"
    needs_classes: ClassVar[bool] = True

    lam: Annotated[float, Field(ge=0, le=1e6, description="lambda, strength of the pull towards the prototypes")] = 1.0

    def fit(self, client: Client, w: Weights, down: Message) -> Weights:
        last = client.state.get("prototypes")
        assert last is None or isinstance(last, dict)
        w = train(client, w, loss=self.loss(last))
        client.state["prototypes"] = prototypes(client, w)
        return w

    def loss(self, prototypes: Weights | None) -> Loss:
        """Cross-entropy and the pull; before there are prototypes, and for a class without one, there is no pull."""
        if prototypes is None:
            return cross_entropy
        c = Centroids.from_tensors(prototypes)
        return aligned_cross_entropy(self.lam, torch.where(c.present[:, None], c.means, torch.nan))


def prototypes(client: Client, w: Weights) -> Weights:
    """The client's class means, taken after training and without augmentation."""
    return local_centroids(features(client, w), client.train_set[1], client.classes).to_tensors()
