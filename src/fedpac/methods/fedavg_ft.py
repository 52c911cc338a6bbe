"""FedAvg-FT: FedAvg whose clients fine-tune the global model before they use it."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import nn

from fedpac.client import Client
from fedpac.message import Message
from fedpac.methods.base import Newcomer, Which
from fedpac.methods.fedavg import FedAvg
from fedpac.training import train


class FedAvgFT(FedAvg):
    """FedAvg, then every client fine-tunes a copy for prediction only; the copy never enters the average.

    w <- FedAvg          v_i <- epochs of SGD on F_i from w
    """

    name = "fedavg-ft"
    title = "FedAvg-FT"
    family = "one global model"
    reported: ClassVar[Which] = "personal"

    depth: Annotated[Literal["all", "head"], Field(description="what is fine-tuned")] = "all"
    epochs: Annotated[int | None, Field(ge=0, description="fine-tuning epochs; default: training.epochs")] = None
    lr: Annotated[float | None, Field(gt=0, description="fine-tuning rate; default: training.lr")] = None

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        if (self.depth, self.epochs, self.lr) == ("all", None, None):
            return super().personal(client, down, up)  # fine-tuning as local training does it has been done already
        tuned = train(client, self.assemble(client, down), part=self.depth, epochs=self.epochs, lr=self.lr)
        return client.with_weights(tuned)

    def newcomer(self) -> Newcomer:
        return Newcomer("the global model, which it fine-tunes", "the global model")

    def arrival(self, client: Client, down: Message) -> nn.Module:
        return self.personal(client, down, self.local(client, down)) if client.n else super().arrival(client, down)
