"""pFedGraph (Ye et al., ICML 2023): a collaboration graph inferred from how models have moved."""

from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.collaboration.simplex_qp import Array, solve_simplex_qps
from fedpac.message import Message
from fedpac.methods.base import Method
from fedpac.replies import SAMPLES, Description, like
from fedpac.server import Server
from fedpac.training import Correction, flatten, train
from fedpac.weights import weighted_sum

TINY = 1e-3  # norms below it are taken for this one


class PFedGraph(Method):
    """Every client gets a mean of all models of its own, with weights for those that moved the same way.

    client:  theta_i <- E epochs of SGD on F_i - lam cos(theta_i, w_i) from w_i, the model it received
    server:  d_ij    <- - cos(theta_i - w_0, theta_j - w_0)                    w_0: the common initial weights
             alpha_i <- argmin over the simplex of sum_j alpha_ij d_ij + strength sum_j (alpha_ij - n_j / n)^2
             w_i     <- sum_j alpha_ij theta_j

    The public code adds lam cos(theta_i, w_i), which pushes models apart; the paper's term is this one.
    """

    name: ClassVar[str] = "pfedgraph"
    title: ClassVar[str] = "pFedGraph"
    family: ClassVar[str] = "collaboration"

    strength: Annotated[float, Field(gt=0, le=1e6, description="alpha, how close the weights stay to sample sizes")] = (
        0.8
    )
    lam: Annotated[float, Field(ge=0, le=1e6, description="pull towards the direction of the received model")] = 0.01

    def setup(self, server: Server) -> None:
        server.state["w"] = server.task.initial

    def send(self, server: Server, client: int) -> Message:
        return Message(w=server.state.get(f"w.{client}", server.state["w"]))

    def local(self, client: Client, down: Message) -> Message:
        w = down.weights("w")
        pull = aligned(self.lam, flatten(w, client.model)) if self.lam else None
        return Message(w=train(client, w, correction=pull), n=client.n)

    def replies(self, server: Server, client: int, down: Message) -> Description:
        return {"w": like(server.task.initial, server.task.buffers), "n": SAMPLES}

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        ids, models = list(replies), [up.weights("w") for up in replies.values()]
        rows: list[tuple[int, int, float]] = []
        for i, alpha in zip(ids, self.graph(server, replies), strict=True):
            used = {j: float(alpha[j]) for j in np.flatnonzero(alpha)}
            server.state[f"w.{i}"] = weighted_sum([models[j] for j in used], list(used.values()))
            rows += [(i, ids[j], weight) for j, weight in used.items()]
        server.state["alpha"] = torch.tensor(rows, dtype=torch.float64)

    def graph(self, server: Server, replies: dict[int, Message]) -> Array:
        """alpha, one row for each client: ½ a'Qa - c'a with Q = 2 strength and c = 2 strength n_j / n - d_i."""
        model = server.task.model
        start = flatten(server.task.initial, model).double()
        moved = torch.stack([flatten(up.weights("w"), model).double() - start for up in replies.values()])
        direction = moved / moved.norm(dim=1, keepdim=True).clamp(min=1e-30)
        n = torch.tensor([up.number("n") for up in replies.values()], dtype=torch.float64)
        c = 2 * self.strength * n / n.sum() + direction @ direction.T
        return solve_simplex_qps(2 * self.strength * np.eye(len(n)), c.numpy())

    def received(self, client: Client, down: Message) -> nn.Module:
        return client.with_weights(down.weights("w"))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return client.with_weights(up.weights("w"))

    def peer_weights(self, server: Server) -> list[tuple[int, int, float]]:
        rows = server.tensor("alpha").tolist() if "alpha" in server.state else []
        return [(int(i), int(j), weight) for i, j, weight in rows]


def aligned(strength: float, anchor: Tensor) -> Correction:
    """Gradient of -strength cos(w, anchor); of weights near zero, where a direction means nothing, it stays small."""
    size = anchor.norm().clamp(min=TINY)

    def correct(parameters: Tensor, gradient: Tensor) -> None:
        own = parameters.norm().clamp(min=TINY)
        cosine = torch.dot(parameters, anchor) / (own * size)
        gradient.sub_(strength * (anchor / (own * size) - cosine * parameters / own.square()))

    return correct
