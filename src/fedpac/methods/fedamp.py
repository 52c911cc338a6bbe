"""FedAMP (Huang et al., AAAI 2021): personal models that attend to those nearest to them."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.message import Message
from fedpac.methods.base import Method, Which
from fedpac.replies import Description, like
from fedpac.server import Server
from fedpac.training import flatten, proximal, train
from fedpac.weights import combined


class FedAMP(Method):
    """Each client's model is pulled towards a mean of all models, in which similar ones weigh more.

    client:  w_i   <- E epochs of SGD on F_i(w_i) + lam/(2 alpha) |w_i - u_i|^2 from w_i
    server:  xi_ij <- alpha/sigma exp(-|w_i - w_j|^2 / sigma)                          j != i
             u_i   <- (1 - sum_j xi_ij) w_i + sum_j xi_ij w_j

    The paper asks for an alpha that leaves no weight negative. Where a client's xi_ij add up to more than 1, they are
    scaled down to 1 for this client alone. lam = 0 is Local-only.
    """

    name: ClassVar[str] = "fedamp"
    title: ClassVar[str] = "FedAMP"
    family: ClassVar[str] = "collaboration"
    reported: ClassVar[Which] = "personal"

    alpha: Annotated[float, Field(gt=0, le=1e6, description="step of the attention")] = 1.0
    sigma: Annotated[float, Field(gt=0, le=1e12, description="squared distance at which attention falls by e")] = 10.0
    lam: Annotated[float, Field(ge=0, le=1e6, description="lambda; the pull to u_i is lambda / alpha")] = 1.0

    def setup(self, server: Server) -> None:
        server.state["u"] = server.task.initial

    def send(self, server: Server, client: int) -> Message:
        return Message(u=server.state.get(f"u.{client}", server.state["u"]))

    def local(self, client: Client, down: Message) -> Message:
        pull = proximal(self.lam / self.alpha, flatten(down.weights("u"), client.model)) if self.lam else None
        client.state["w"] = train(client, client.weights("w"), correction=pull)
        return Message(w=client.state["w"])

    def replies(self, server: Server, client: int, down: Message) -> Description:
        return {"w": like(server.task.initial, server.task.buffers)}

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        ids, models = list(replies), {i: up.weights("w") for i, up in replies.items()}
        vectors = torch.stack([flatten(w, server.task.model).double() for w in models.values()])
        rows: list[tuple[int, int, float]] = []
        for i, xi in zip(ids, self.attention(vectors).tolist(), strict=True):
            used = {j: weight for j, weight in zip(ids, xi, strict=True) if weight}
            server.state[f"u.{i}"] = combined(i, models, used)
            rows += [(i, j, weight) for j, weight in used.items()]
        server.state["xi"] = torch.tensor(rows, dtype=torch.float64)

    def attention(self, models: Tensor) -> Tensor:
        """xi, one row for each client; what the others leave is its own."""
        distances = torch.stack([(models - w).square().sum(1) for w in models])
        xi = self.alpha / self.sigma * torch.exp(-distances / self.sigma)
        xi.fill_diagonal_(0)
        xi /= xi.sum(1, keepdim=True).clamp(min=1)
        return xi + torch.diag(1 - xi.sum(1))

    def received(self, client: Client, down: Message) -> nn.Module:
        return client.with_weights(down.weights("u"))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return client.with_weights(up.weights("w"))

    def peer_weights(self, server: Server) -> list[tuple[int, int, float]]:
        rows = server.tensor("xi").tolist() if "xi" in server.state else []
        return [(int(i), int(j), weight) for i, j, weight in rows]
