"""FedFomo (Zhang et al., ICLR 2021)."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.errors import ConfigError
from fedpac.message import Message, Weights
from fedpac.methods.base import Method, Newcomer, Which
from fedpac.replies import Description, TensorLike, like
from fedpac.server import Server
from fedpac.training import evaluate, flatten, shuffled_batches, train
from fedpac.weights import average

MOST_CLIENTS = 40_000


class FedFomo(Method):
    """Every client weighs the models of some peers by how much they help on its own validation data.

    client:  a_n <- (L_i(start_i) - L_i(theta_n)) / |theta_n - start_i|_1      theta_n: M models, its own among them
             start_i <- sum_n max(a_n, 0) theta_n / sum_n max(a_n, 0);  its own theta_i where no model helps
             theta_i <- E epochs of SGD on the other part of its data from start_i
    server:  P_in <- P_in + a_n / sum_n |a_n|;  a client is sent the peers with the largest P_in, a random one instead
             with probability epsilon - (t - 1) epsilon_decay

    start_i is the model that client i last trained from, so its own theta_i earns its weight like any other.
    validation = 0 weighs the models on the training data and keeps none of them back; with models = 1 that is
    Local-only. A client sees peers' models in plain: this cannot be combined with encrypted aggregation.
    """

    name: ClassVar[str] = "fedfomo"
    title: ClassVar[str] = "FedFomo"
    family: ClassVar[str] = "collaboration"
    reported: ClassVar[Which] = "personal"

    models: Annotated[
        int, Field(ge=1, le=10_000, description="M, number of models a client weights, its own included")
    ] = 5
    validation: Annotated[float, Field(ge=0, le=0.9, description="share of the data held out to weight models")] = 0.2
    epsilon: Annotated[float, Field(ge=0, le=1, description="probability of a random peer in the first round")] = 0.3
    epsilon_decay: Annotated[float, Field(ge=0, le=1, description="decrease of epsilon per round")] = 0.05

    def setup(self, server: Server) -> None:
        if server.task.clients > MOST_CLIENTS:
            raise ConfigError(
                f"method fedfomo: it keeps an affinity for every pair of clients; {server.task.clients:,} clients "
                f"would need {4 * server.task.clients**2 / 1e9:,.0f} GB; the maximum is {MOST_CLIENTS:,} clients"
            )
        server.state["affinity"] = torch.eye(server.task.clients)

    def send(self, server: Server, client: int) -> Message:
        return self.models_of(server, self.candidates(server, client))

    def models_of(self, server: Server, peers: list[int]) -> Message:
        models = {f"model {j}": server.weights(f"model {j}") for j in peers}
        return Message(peers=torch.tensor(peers, dtype=torch.int64), **models)

    def candidates(self, server: Server, client: int) -> list[int]:
        """The M - 1 peers to send, fewer while fewer have taken part; ties are broken at random."""
        stream = server.stream(f"candidates {client}")
        epsilon = max(0.0, self.epsilon - (server.round - 1) * self.epsilon_decay)
        liking = server.tensor("affinity")[client]
        known = [j for j in range(server.task.clients) if j != client and f"model {j}" in server.state]
        rest = [known[r] for r in torch.randperm(len(known), generator=stream).tolist()]
        chosen: list[int] = []
        while rest and len(chosen) < self.models - 1:
            explore = float(torch.rand((), generator=stream)) < epsilon  # rest is in random order already
            chosen.append(rest[0] if explore else max(rest, key=lambda j: float(liking[j])))
            rest.remove(chosen[-1])
        return sorted(chosen)

    def local(self, client: Client, down: Message) -> Message:
        keep, _ = self.split(client)
        start, gains, shares = self.combine(client, down)
        recipe = client.recipe
        batches = shuffled_batches(len(keep), recipe.batch, recipe.epochs, client.stream("train"), client.device)
        client.state["start"] = start
        client.state["theta"] = train(client, start, batches=(keep[index] for index in batches))
        return Message(theta=client.state["theta"], ids=self.ids(client, down), gains=gains, shares=shares)

    def combine(self, client: Client, down: Message) -> tuple[Weights, Tensor, Tensor]:
        """The model to start from, the gain a_n of each candidate, and the share it got."""
        start, own = client.weights("start"), client.weights("theta")
        models = [own, *(down.weights(f"model {j}") for j in down.tensor("peers").tolist())]
        here, loss = flatten(start, client.model), self.loss(client, start)
        gains = torch.zeros(len(models), dtype=torch.float64)
        for n, theta in enumerate(models):
            distance = float((flatten(theta, client.model) - here).abs().sum())
            if distance > 0:
                gains[n] = (loss - self.loss(client, theta)) / distance
        shares = gains.clamp(min=0)
        if shares.sum() == 0:
            shares[0] = 1.0
        shares /= shares.sum()
        used = [n for n in range(len(models)) if shares[n] > 0]
        return average({n: models[n] for n in used}, {n: float(shares[n]) for n in used}), gains, shares

    def loss(self, client: Client, weights: Weights) -> float:
        x, y = client.train_set
        _, held_out = self.split(client)
        return evaluate(client.with_weights(weights), x[held_out], y[held_out])[1]

    def split(self, client: Client) -> tuple[Tensor, Tensor]:
        """Indices for training and for weighing, the same in every round. A client with one sample uses it for both."""
        order = torch.randperm(client.n, generator=client.lasting_stream("validation")).to(client.device)
        size = min(max(1, round(self.validation * client.n)), client.n - 1)
        if self.validation == 0 or size == 0:
            everything = torch.arange(client.n, device=client.device)
            return everything, everything
        return order[size:].sort().values, order[:size].sort().values

    def ids(self, client: Client, down: Message) -> Tensor:
        peers = down.tensor("peers")
        return torch.cat([peers.new_tensor([client.id]), peers])

    def replies(self, server: Server, client: int, down: Message) -> Description:
        ids = torch.cat([torch.tensor([client]), down.tensor("peers")])
        return {
            "theta": like(server.task.initial, server.task.buffers),
            "ids": TensorLike(torch.int64, (len(ids),), equal=ids),
            "gains": TensorLike(torch.float64, (len(ids),)),
            "shares": TensorLike(torch.float64, (len(ids),), 0, 1),
        }

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        affinity = server.tensor("affinity").clone()
        rows = []
        for i, up in replies.items():
            ids, gains = up.tensor("ids"), up.tensor("gains")
            affinity[i, ids] += (gains / gains.abs().sum().clamp(min=1e-30)).to(affinity.dtype)
            server.state[f"model {i}"] = up.weights("theta")
            rows += [
                (i, j, share) for j, share in zip(ids.tolist(), up.tensor("shares").tolist(), strict=True) if share
            ]
        server.state["affinity"] = affinity
        server.state["shares"] = torch.tensor(rows, dtype=torch.float64)

    def peer_weights(self, server: Server) -> list[tuple[int, int, float]]:
        rows = server.tensor("shares").tolist() if "shares" in server.state else []
        return [(int(i), int(j), share) for i, j, share in rows]

    def received(self, client: Client, down: Message) -> nn.Module:
        return client.with_weights(self.combine(client, down)[0])

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return client.with_weights(client.weights("theta"))

    def grow(self, server: Server, before: int) -> None:
        affinity = torch.eye(server.task.clients)
        affinity[:before, :before] = server.tensor("affinity")
        server.state["affinity"] = affinity

    def newcomer(self) -> Newcomer:
        return Newcomer("models of M - 1 random clients, weighted on its samples as for a participant")

    def welcome(self, server: Server, hello: Message | None = None) -> Message:
        known = [j for j in range(server.task.clients) if f"model {j}" in server.state]
        order = torch.randperm(len(known), generator=server.stream("newcomer"))
        return self.models_of(server, sorted(known[r] for r in order[: self.models - 1].tolist()))
