"""pFedFDA (Mclaughlin and Su, NeurIPS 2024): a generative classifier in place of a trained head."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.collaboration.statistics import class_means
from fedpac.errors import ConfigError
from fedpac.message import Message, Weights
from fedpac.methods.base import Newcomer
from fedpac.methods.fedavg import FedAvg
from fedpac.models import Classifier, Section, section
from fedpac.mods.dp import Kind
from fedpac.replies import HUGE, Description, TensorLike
from fedpac.replies import class_means as means_like
from fedpac.server import Server
from fedpac.training import features, forked_rng, train
from fedpac.weights import average_of


class PFedFDA(FedAvg):
    """A shared body under a Gaussian model of its features: every class has a mean, and all of them one covariance.

    p(y = k | z) proportional to p_ik N(z; mu_k, S), that is                    p_i: the client's class frequencies
    logits_k = z' S^-1 mu_k - mu_k' S^-1 mu_k / 2 + log p_ik
    client:  theta_i    <- E epochs of SGD on F_i under the global (mu, S), from theta
             (mu_i, S_i) <- b (its own estimate with theta_i) + (1 - b) (mu, S)
    server:  theta, mu, S <- means weighted by n_i

    b is the one of `grid` + 1 even steps from 0 to 1 with the least cross-entropy in 2-fold cross-validation. Classes
    that the client lacks keep the global mean. S + ridge max(1, tr(S)/d) I is inverted in place of S. The network's
    head is not used.
    """

    name: ClassVar[str] = "pfedfda"
    title: ClassVar[str] = "pFedFDA"
    family: ClassVar[str] = "decoupling"
    needs_classes: ClassVar[bool] = True
    shared: ClassVar[Section] = "body"

    ridge: Annotated[float, Field(gt=0, le=1e6, description="keeps the covariance from being singular")] = 0.01
    grid: Annotated[
        int, Field(ge=1, le=1000, description="grid steps for b, the weight of the client's own estimate")
    ] = 10

    def setup(self, server: Server) -> None:
        super().setup(server)
        task = server.task
        if task.features is None:
            raise ConfigError("method pfedfda needs the feature dimension: give the task a data sample")
        means = torch.rand(task.classes, task.features, generator=server.stream("means"), dtype=torch.float64)
        server.state["gaussian"] = Gaussian(means, torch.eye(task.features, dtype=torch.float64)).to_tensors()

    def send(self, server: Server, client: int) -> Message:
        return Message(w=server.weights("w"), gaussian=server.weights("gaussian"))

    def local(self, client: Client, down: Message) -> Message:
        shared, w = Gaussian.of(down), self.assemble(client, down)
        model = self.predictor(client, w, shared)
        with torch.no_grad():
            if model.body.eval()(client.train_set[0][:1]).dim() == 2:
                model.head = cast(nn.Sequential, model.head)[1]  # a plain layer trains faster
        body = section(train(client, dict(model.state_dict()), model=model, part="body"), "body")
        own = self.interpolated(client, {**w, **body}, shared)
        return Message(w=body, gaussian=own.to_tensors(), n=client.n)

    def interpolated(self, client: Client, w: Weights, shared: "Gaussian") -> "Gaussian":
        """b times what the client's features say, and the rest of what all say."""
        z, y = features(client, w).flatten(1).cpu().double(), client.train_set[1].cpu()
        half = torch.randperm(client.n, generator=client.stream("folds")) < client.n // 2
        steps = [step / self.grid for step in range(self.grid + 1)]
        losses = torch.zeros(len(steps), dtype=torch.float64)
        for kept in (half, ~half):
            if kept.any() and not kept.all():
                own = estimate(z[kept], y[kept], shared)
                for at, b in enumerate(steps):
                    scores = z[~kept] @ (head := mixture(b, own, shared).linear(self.ridge, self.prior(client)))[0].T
                    losses[at] += F.cross_entropy(scores + head[1], y[~kept], reduction="sum")
        return mixture(steps[int(losses.argmin())], estimate(z, y, shared), shared)

    def prior(self, client: Client) -> Tensor:
        """The log of the class frequencies; who has no samples takes all classes for equally frequent."""
        counts = client.class_counts.cpu().double()
        return (counts / counts.sum() if client.n else torch.ones_like(counts) / len(counts)).clamp(min=1e-12).log()

    def predictor(self, client: Client, w: Weights, gaussian: "Gaussian") -> Classifier:
        """The client's body under the head that the Gaussian model amounts to."""
        weight, bias = gaussian.linear(self.ridge, self.prior(client))
        classes, d = weight.shape
        with torch.no_grad(), forked_rng(client.device):  # what the layer draws to start with is not missed elsewhere
            linear = nn.Linear(d, classes, device=client.device, dtype=client.task.dtype)
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        return Classifier(cast(nn.Module, client.with_weights(w).body), nn.Sequential(nn.Flatten(), linear))

    def replies(self, server: Server, client: int, down: Message) -> Description:
        task, known = server.task, server.state["gaussian"]
        means = known["means"] if isinstance(known, dict) else None
        d = task.features
        gaussian = {
            "means": means_like(task.classes, d, torch.float64, means),
            "covariance": TensorLike(torch.float64, (d, d), -HUGE, HUGE, moment=True),
        }
        return {**super().replies(server, client, down), "gaussian": gaussian}

    def sums(self) -> tuple[str, ...]:
        return ("w", "gaussian")

    def protects(self) -> Mapping[str, Kind]:
        return {}  # nobody has worked out what its Gaussian model tells

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        super().merge(server, replies)
        server.state["gaussian"] = average_of(replies, "gaussian")

    def received(self, client: Client, down: Message) -> nn.Module:
        w = self.assemble(client, down)
        return self.predictor(client, w, self.interpolated(client, w, Gaussian.of(down)))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return self.predictor(client, self.assemble(client, up), Gaussian.of(up))

    def newcomer(self) -> Newcomer:
        common = "the body and the global Gaussian model"
        return Newcomer(f"{common}, mixed with its own estimate", common)

    def welcome(self, server: Server, hello: Message | None = None) -> Message:
        return Message(w=server.weights("w"), gaussian=server.weights("gaussian"))

    def arrival(self, client: Client, down: Message) -> nn.Module:
        if client.n:
            return self.received(client, down)
        return self.predictor(client, self.assemble(client, down), Gaussian.of(down))


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Class means (K, d) and the covariance that all classes share (d, d), in double precision on the CPU."""

    means: Tensor
    covariance: Tensor

    def to_tensors(self) -> Weights:
        return {"means": self.means, "covariance": self.covariance}

    @classmethod
    def of(cls, message: Message) -> "Gaussian":
        return cls(**{name: tensor.cpu() for name, tensor in message.weights("gaussian").items()})

    def linear(self, ridge: float, log_prior: Tensor) -> tuple[Tensor, Tensor]:
        """Weight (K, d) and bias (K) of the linear classifier that compares the classes' densities."""
        d = len(self.covariance)
        level = max(1.0, float(self.covariance.trace()) / d)  # features that are all alike must not make it singular
        factor = torch.linalg.cholesky(self.covariance + ridge * level * torch.eye(d, dtype=torch.float64))
        weight = torch.cholesky_solve(self.means.T, factor).T
        return weight, log_prior - (weight * self.means).sum(1) / 2


def estimate(z: Tensor, y: Tensor, shared: Gaussian) -> Gaussian:
    """What these features say; a class without samples keeps its shared mean."""
    counts, own = class_means(z, y, len(shared.means))
    means = torch.where(counts[:, None] > 0, own, shared.means)
    gap = z - means[y]
    return Gaussian(means, gap.T @ gap / len(z))


def mixture(share: float, own: Gaussian, shared: Gaussian) -> Gaussian:
    return Gaussian(own.means.lerp(shared.means, 1 - share), own.covariance.lerp(shared.covariance, 1 - share))
