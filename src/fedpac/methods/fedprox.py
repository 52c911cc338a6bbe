"""FedProx (Li et al., MLSys 2020)."""

from typing import Annotated, ClassVar

from pydantic import Field

from fedpac.client import Client
from fedpac.message import Message, Weights
from fedpac.methods.fedavg import FedAvg
from fedpac.training import flatten, proximal, train


class FedProx(FedAvg):
    """FedAvg whose clients are held near the model they received.

    w_i <- E epochs of SGD on F_i(w_i) + mu/2 |w_i - w|^2 from w          w <- sum_i n_i / n  w_i
    """

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"
    family: ClassVar[str] = "one global model"

    mu: Annotated[float, Field(ge=0, le=1e6, description="strength of the pull towards the received model")] = 0.01

    def fit(self, client: Client, w: Weights, down: Message) -> Weights:
        return train(client, w, correction=proximal(self.mu, flatten(w, client.model)))
