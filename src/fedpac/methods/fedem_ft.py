"""FedEM-FT: FedEM whose clients fine-tune the components before they use them."""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import nn

from fedpac.client import Client
from fedpac.message import Message
from fedpac.methods.base import Newcomer, Which
from fedpac.methods.fedem import FedEM


class FedEMFT(FedEM):
    """FedEM, then every client fine-tunes copies of the components for prediction only.

    v_im <- epochs of SGD on mean_s q_sm l(h_m(x_s), y_s) from w_m          predict: sum_m pi_im softmax(v_im(x))

    With as many epochs as the recipe has, v_im is what FedEM's own M-step gives, so it costs nothing extra.
    """

    name: ClassVar[str] = "fedem-ft"
    title: ClassVar[str] = "FedEM-FT"
    family: ClassVar[str] = "mixture"
    reported: ClassVar[Which] = "personal"

    epochs: Annotated[int | None, Field(ge=0, description="fine-tuning epochs; default: training.epochs")] = None

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        if self.epochs is None:
            return super().personal(client, down, up)
        tuned = self.m_step(client, down, client.tensor("q"), self.epochs)
        return self.mixture(client, tuned, client.tensor("pi"))

    def newcomer(self) -> Newcomer:
        return Newcomer(f"{super().newcomer().labelled}, which it fine-tunes", super().newcomer().without)

    def arrival(self, client: Client, down: Message) -> nn.Module:
        return self.personal(client, down, self.local(client, down)) if client.n else super().arrival(client, down)
