"""FedRep (Collins et al., ICML 2021)."""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from fedpac.client import Client
from fedpac.message import Message, Weights
from fedpac.methods.fedavg import FedAvg
from fedpac.models import Section
from fedpac.training import Correction, Loss, cross_entropy, features, head_cross_entropy, train


class FedRep(FedAvg):
    """A shared body under a head of one's own, trained in turn.

    phi_i   <- head epochs of SGD on F_i, body fixed
    theta_i <- E epochs of SGD on F_i, head fixed          theta <- sum_i n_i / n  theta_i
    """

    name = "fedrep"
    title = "FedRep"
    family = "decoupling"
    shared: ClassVar[Section] = "body"

    head_epochs: Annotated[int, Field(ge=0, description="epochs for the head")] = 1
    head_lr: Annotated[float, Field(gt=0, description="learning rate of the head")] = 0.1
    body_epochs: Annotated[int | None, Field(ge=0, description="epochs for the body; default: training.epochs")] = None

    augmented: Annotated[
        bool, Field(description="use augmented images for features, too, not just to train the body")
    ] = False

    def fit(self, client: Client, w: Weights, down: Message) -> Weights:
        return self.head_then_body(client, w, self.look(client, w, "head"), cross_entropy)

    def look(self, client: Client, w: Weights, purpose: str) -> Tensor:
        """The features; `purpose` names the random stream of the crops, if there are any."""
        return features(client, w, augmented=purpose if self.augmented else None)

    def head_then_body(
        self, client: Client, w: Weights, z: Tensor, body_loss: Loss, correction: Correction | None = None
    ) -> Weights:
        """The body is fixed while the head trains, so its features `z` are computed once."""
        w = train(
            client, w, part="head", loss=head_cross_entropy, inputs=z,
            epochs=self.head_epochs, lr=self.head_lr, purpose="head",
        )  # fmt: skip
        return train(
            client, w, part="body", loss=body_loss, correction=correction,
            epochs=self.body_epochs, lr=self.body_lr(client), purpose="body",
        )  # fmt: skip

    def body_lr(self, client: Client) -> float:
        return client.recipe.lr
