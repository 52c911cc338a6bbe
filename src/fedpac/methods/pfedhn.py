"""pFedHN (Shamsian et al., ICML 2021)."""

from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.message import Message, Weights
from fedpac.methods.base import Method, Newcomer
from fedpac.models import trainable
from fedpac.native.vectors import sgd_step
from fedpac.randomness import stream_seed
from fedpac.replies import SAMPLES, Description, like, tensor_like
from fedpac.server import Server
from fedpac.training import flatten, train, unflatten
from fedpac.weights import average, average_of


class PFedHN(Method):
    """A network on the server writes every client's model from an embedding of that client.

    theta_i = H_psi(e_i)                    H: a small trunk, then one linear layer with as many outputs as theta has
    client:  delta_i <- theta_i - (E epochs of SGD on F_i from theta_i)
    server:  (g_psi, g_e) <- delta_i' dH/d(psi, e_i) where theta_i was written, cut to norm `clip`
             psi <- a step of SGD on g_psi;  e_i <- one on g_e

    "sequential": client after client, each with a model that H writes after the step before it, as the authors do.
    "mean": all clients of a round at once, and one step on the mean of their g_psi.

    H begins by writing the common initial weights for everybody. Only theta_i and delta_i travel. Running statistics
    of normalisation layers, which no gradient reaches, are averaged.
    """

    name: ClassVar[str] = "pfedhn"
    title: ClassVar[str] = "pFedHN"
    family: ClassVar[str] = "hyper-network"
    revision: ClassVar[int] = 2  # clients are heard one by one

    lr: Annotated[float, Field(gt=0, le=100, description="learning rate of the server")] = 0.01
    client_lr: Annotated[float, Field(gt=0, le=100, description="learning rate of the clients")] = 0.01
    steps: Annotated[Literal["sequential", "mean"], Field(description="one client after another, or all at once")] = (
        "sequential"
    )
    momentum: Annotated[float, Field(ge=0, lt=1, description="momentum of the server, kept across rounds")] = 0.9
    weight_decay: Annotated[float, Field(ge=0, le=1, description="weight decay on the server")] = 1e-3
    clip: Annotated[float, Field(gt=0, description="maximum norm of one client's gradient on the server")] = 50.0
    embedding: Annotated[int | None, Field(ge=1, description="length of e_i; default: 1 + N/4")] = None
    hidden: Annotated[int, Field(ge=1, description="width of the trunk")] = 100
    layers: Annotated[int, Field(ge=0, description="hidden layers of the trunk after its first")] = 3

    def setup(self, server: Server) -> None:
        task = server.task
        width = self.embedding or 1 + task.clients // 4
        initial = flatten(task.initial, task.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(task.seed, "hyper-network"))
            e = torch.randn(task.clients, width)
            psi: Weights = {}
            for at in range(self.layers + 1):
                layer = nn.Linear(self.hidden if at else width, self.hidden)
                psi |= {f"{at}.weight": layer.weight.detach(), f"{at}.bias": layer.bias.detach()}
        psi |= {"out.weight": torch.zeros(len(initial), self.hidden), "out.bias": initial}
        psi, e = {name: p.to(initial.dtype) for name, p in psi.items()}, e.to(initial.dtype)
        server.state.update(psi=psi, psi_velocity={name: torch.zeros_like(p) for name, p in psi.items()})
        server.state.update(e=e, e_velocity=torch.zeros_like(e), buffers=self.buffers(task.initial, task.model))

    def buffers(self, weights: Weights, model: nn.Module) -> Weights:
        parameters = dict(trainable(model))
        return {name: tensor for name, tensor in weights.items() if name not in parameters}

    def trunk(self, psi: Weights, e: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The trunk's output a, and what went into each of its layers."""
        inputs = [e]
        a = F.linear(e, psi["0.weight"], psi["0.bias"])
        for at in range(1, self.layers + 1):
            inputs.append(F.relu(a))
            a = F.linear(inputs[-1], psi[f"{at}.weight"], psi[f"{at}.bias"])
        return a, inputs

    def send(self, server: Server, client: int) -> Message:
        return self.written(server, server.tensor("e")[client])

    def written(self, server: Server, e: Tensor) -> Message:
        """The model that H writes for an embedding."""
        psi = server.weights("psi")
        a, _ = self.trunk(psi, e)
        theta = F.linear(a, psi["out.weight"], psi["out.bias"])
        return Message(w=unflatten(theta, server.weights("buffers"), server.task.model))

    def local(self, client: Client, down: Message) -> Message:
        w = train(client, down.weights("w"), lr=self.client_lr)
        delta = flatten(down.weights("w"), client.model) - flatten(w, client.model)
        return Message(delta=delta, buffers=self.buffers(w, client.model), n=client.n)

    def waves(self, chosen: list[int]) -> list[list[int]]:
        return [[client] for client in chosen] if self.steps == "sequential" else [chosen]

    def replies(self, server: Server, client: int, down: Message) -> Description:
        theta = flatten(down.weights("w"), server.task.model)
        buffers = like(server.weights("buffers"), server.task.buffers)
        return {"delta": tensor_like(theta), "buffers": buffers, "n": SAMPLES}

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        psi, velocity, ids = server.weights("psi"), server.weights("psi_velocity"), list(replies)
        delta = torch.stack([up.tensor("delta") for up in replies.values()])
        e, e_velocity = server.tensor("e").clone(), server.tensor("e_velocity").clone()
        g_trunk, g_e, a = self.gradients(psi, e[ids], delta)

        squares = delta.square().sum(1) * (a.square().sum(1) + 1) + g_e.square().sum(1)
        squares += sum(g.square().flatten(1).sum(1) for g in g_trunk.values())
        cut = (self.clip / squares.sqrt().clamp(min=1e-30)).clamp(max=1)
        share = cut / len(ids)
        g_psi = {name: torch.tensordot(share, each, 1) for name, each in g_trunk.items()}
        # no client's own g_psi is written out: that of the last layer is delta_i a_i'
        g_psi |= {"out.weight": delta.T @ (share[:, None] * a), "out.bias": share @ delta}
        for name, g in g_psi.items():  # in place, for they are large
            sgd_step(psi[name], g, velocity[name], self.lr, self.momentum, self.weight_decay)

        e_velocity[ids] = self.momentum * e_velocity[ids] + cut[:, None] * g_e + self.weight_decay * e[ids]
        e[ids] -= self.lr * e_velocity[ids]
        server.state.update(e=e, e_velocity=e_velocity, buffers=self.merged_buffers(server, replies))

    def merged_buffers(self, server: Server, replies: dict[int, Message]) -> Weights:
        """Their mean over the round; where clients come one by one, over the last N of them by and by."""
        new = average_of(replies, "buffers")
        if self.steps == "mean":
            return new
        old, share = server.weights("buffers"), 1 / server.task.clients
        return average({0: new, 1: old}, {0: share, 1: 1 - share})  # counters are the newest

    def gradients(self, psi: Weights, e: Tensor, delta: Tensor) -> tuple[Weights, Tensor, Tensor]:
        """delta_i' dH/d(trunk) and delta_i' dH/de_i for every client i (the rows), and the trunk's output a_i."""
        a, inputs = self.trunk(psi, e)
        g, g_trunk = delta @ psi["out.weight"], {}
        for at in range(self.layers, -1, -1):
            g_trunk[f"{at}.weight"], g_trunk[f"{at}.bias"] = g[:, :, None] * inputs[at][:, None, :], g
            g = g @ psi[f"{at}.weight"]
            if at:
                g = g * (inputs[at] > 0)
        return g_trunk, g, a

    def received(self, client: Client, down: Message) -> nn.Module:
        return client.with_weights(down.weights("w"))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        theta = flatten(down.weights("w"), client.model) - up.tensor("delta")
        return client.with_weights(unflatten(theta, up.weights("buffers"), client.model))

    def grow(self, server: Server, before: int) -> None:
        """Those who come begin where newcomers are: at the mean of all embeddings."""
        e, velocity, more = server.tensor("e"), server.tensor("e_velocity"), server.task.clients - before
        e = torch.cat([e, e.mean(0, keepdim=True).expand(more, -1)])
        server.state.update(e=e, e_velocity=torch.cat([velocity, velocity.new_zeros(more, velocity.shape[1])]))

    def newcomer(self) -> Newcomer:
        return Newcomer(*2 * ["the model that the hyper-network generates for the mean of all embeddings"])

    def welcome(self, server: Server, hello: Message | None = None) -> Message:
        return self.written(server, server.tensor("e").mean(0))
