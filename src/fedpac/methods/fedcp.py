"""FedCP (Zhang et al., KDD 2023): a network decides, feature by feature, what is personal in a sample."""

import copy
from typing import Annotated, ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.errors import ConfigError
from fedpac.message import Message, Weights
from fedpac.methods.fedavg import FedAvg
from fedpac.models import load_into, section, weights_of, without
from fedpac.randomness import stream_seed
from fedpac.server import Server
from fedpac.training import Batch, Loss, forked_rng, train

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)


class FedCP(FedAvg):
    """A sample's features are divided between a personal and a global head by a policy that all clients share.

    r      = softmax over the two halves of ReLU(LayerNorm(A (f(x) * v_i)))     v_i: the sum of h_i's rows, of length 1
    logits = h_i(f(x) * r) + h(f(x) * (1 - r))                                  h: the global head, fixed in training
    theta_i, A_i, h_i <- E epochs of SGD on F_i + lam MMD(f(x), f_t(x)) from theta, A, h_i     f_t: the received body
    server:  theta, A <- means weighted by n_i          h <- the same mean of (h_i + h) / 2

    h_i stays with the client; until it has one it is h. MMD is with Gaussian kernels of four bandwidths.
    """

    name: ClassVar[str] = "fedcp"
    title: ClassVar[str] = "FedCP"
    family: ClassVar[str] = "decoupling"
    revision: ClassVar[int] = 2  # distances round differently

    lam: Annotated[float, Field(ge=0, le=1e6, description="strength of the pull towards the received features")] = 5.0

    def setup(self, server: Server) -> None:
        super().setup(server)
        task = server.task
        if task.features is None:
            raise ConfigError("method fedcp needs the feature dimension: give the task a data sample")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(task.seed, "policy"))
            policy = weights_of(Policy(task.features).to(task.dtype))
        server.state["w"] = {**server.weights("w"), **renamed(policy, "", "policy.")}

    def local(self, client: Client, down: Message) -> Message:
        w, model = down.weights("w"), self.divided(client, down)
        received = client.own_model(plain(w)).eval() if self.lam else None
        trained = train(client, self.assemble(client, down), model=model, loss=divided_loss(self.lam, received))
        personal = section(trained, "head")
        client.state["own"] = personal
        shared = {
            name: (personal[name] + tensor) / 2 if name in personal and tensor.is_floating_point() else trained[name]
            for name, tensor in w.items()
        }
        return Message(w=shared, n=client.n)

    def assemble(self, client: Client, down: Message) -> Weights:
        """body, policy, the personal head as `head`, the global one as `common`."""
        w = down.weights("w")
        common = section(w, "head")
        own = client.weights("own") if "own" in client.state else common
        return {**without(w, "head"), **own, **renamed(common, "head.", "common.")}

    def divided(self, client: Client, down: Message) -> "Divided":
        w, weights = down.weights("w"), self.assemble(client, down)
        body, head = cast(nn.Module, client.model.body), cast(nn.Module, client.model.head)
        with forked_rng(client.device):
            policy = Policy(len(w["policy.layer.bias"]) // 2).to(client.device, client.task.dtype)
        return Divided(body, head, policy, context_of(section(weights, "head"), policy.features))

    def received(self, client: Client, down: Message) -> nn.Module:
        return load_into(self.divided(client, down), self.assemble(client, down))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        """The global head is the received one until the server has made the next."""
        w = {**up.weights("w"), **section(down.weights("w"), "head")}
        return self.received(client, Message(w=w))

    def arrival(self, client: Client, down: Message) -> nn.Module:
        return self.received(client, down)  # the global head in both places


def divided_loss(lam: float, received: nn.Module | None) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, Divided)
        z = model.body(batch.x)
        value: Tensor = batch.loss(model.decide(z))
        if received is None:
            return value
        with torch.no_grad():
            before = cast(nn.Module, received.body)(batch.x)
        return value + lam * discrepancy(z.flatten(1), before.flatten(1))

    return loss


def discrepancy(a: Tensor, b: Tensor) -> Tensor:
    """MMD^2 of two samples of equal size: how far apart the distributions are that they come from."""

    def similarity(one: Tensor, other: Tensor) -> Tensor:
        distance = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist").square()
        return torch.stack([torch.exp(-0.5 * distance / width) for width in BANDWIDTHS]).sum(0).mean()

    return similarity(a, a) + similarity(b, b) - 2 * similarity(a, b)


class Policy(nn.Module):
    """From features in context to the share of each that is personal.

    Public code adds Gumbel noise to the softmax, also when it predicts; here the same sample has the same shares.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features
        self.layer = nn.Linear(features, 2 * features)
        self.norm = nn.LayerNorm(2 * features)

    def forward(self, z: Tensor) -> Tensor:
        scores = F.relu(self.norm(self.layer(z))).view(len(z), 2, self.features)
        return scores.softmax(dim=1)[:, 0]


class Divided(nn.Module):
    """A body, a personal and a common head, and the policy that divides features between them."""

    def __init__(self, body: nn.Module, head: nn.Module, policy: Policy, context: Tensor) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.common = copy.deepcopy(head).requires_grad_(False)
        self.policy = policy
        self.context: Tensor
        self.register_buffer("context", context, persistent=False)

    def decide(self, z: Tensor) -> Tensor:
        share = self.policy(z.flatten(1) * self.context).view_as(z)
        return cast(Tensor, self.head(z * share) + self.common(z * (1 - share)))

    def forward(self, x: Tensor) -> Tensor:
        return self.decide(self.body(x))


def context_of(head: Weights, features: int) -> Tensor:
    """v_i: what a feature adds to all classes together, scaled to length one; ones where the head does not tell."""
    matrices = [tensor for tensor in head.values() if tensor.dim() == 2]
    if not matrices or matrices[0].shape[1] != features:
        some = next(iter(head.values()), None)
        return torch.ones(features) if some is None else some.new_ones(features)
    product = matrices[0]
    for matrix in matrices[1:]:
        product = matrix @ product
    return F.normalize(product.sum(0), dim=0)


def renamed(weights: Weights, before: str, after: str) -> Weights:
    return {after + name.removeprefix(before): tensor for name, tensor in weights.items()}


def plain(weights: Weights) -> Weights:
    """Without the policy: the weights of the network itself."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith("policy.")}
