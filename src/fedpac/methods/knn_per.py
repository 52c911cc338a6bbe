"""kNN-Per (Marfoq et al., ICML 2022): the global model and a local memory of its features."""

from typing import Annotated, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.message import Message
from fedpac.methods.base import Newcomer
from fedpac.methods.fedavg import FedAvg
from fedpac.training import logits

Share = Annotated[float, Field(ge=0, le=1)]


class KNNPer(FedAvg):
    """FedAvg; to predict, every client mixes in the labels of the training samples whose features are nearest.

    p(x) = lam p_knn(x) + (1 - lam) softmax(w(x))
    p_knn(x)_c = sum of s over the k nearest of label c / sum of s over all k,  s = exp(-|f(x) - f(x_l)|^2 / (scale d))

    Every client chooses its lam on its own training samples, each of them left out of the memory in turn.
    """

    name: ClassVar[str] = "knn-per"
    title: ClassVar[str] = "kNN-Per"
    family: ClassVar[str] = "decoupling"
    needs_classes: ClassVar[bool] = True

    k: Annotated[int, Field(ge=1, le=100_000, description="neighbours")] = 10
    lam: Annotated[
        Share | Annotated[tuple[Share, ...], Field(min_length=1)],
        Field(description="weight of the neighbours: a number, or several candidates"),
    ] = (0.5, 0.6, 0.7, 0.8)
    scale: Annotated[float, Field(gt=0, description="sigma, how slowly a neighbour's vote decays with distance")] = 1.0
    capacity: Annotated[float, Field(gt=0, le=1, description="share of the training samples kept in memory")] = 1.0

    def received(self, client: Client, down: Message) -> nn.Module:
        return self.predictor(client, client.with_weights(down.weights("w")))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return self.predictor(client, client.with_weights(up.weights("w")))

    def predictor(self, client: Client, model: nn.Module) -> "WithNeighbours":
        """The memory is made anew for every model, since features of another body would mean nothing."""
        x, y = client.train_set
        size = max(1, int(self.capacity * client.n + 0.5))
        if size < client.n:
            kept = torch.randperm(client.n, generator=client.lasting_stream("memory"))[:size].to(client.device)
            x, y = x[kept], y[kept]
        keys = logits(cast(nn.Module, model.body), x)
        predictor = WithNeighbours(model, keys, y, client.classes, self.k, self.scale)
        candidates = self.lam if isinstance(self.lam, tuple) else (self.lam,)
        # One sample alone cannot be left out: the first candidate will do.
        predictor.lam = self.choose(predictor, y, candidates) if size > 1 else candidates[0]
        return predictor

    def choose(self, predictor: "WithNeighbours", y: Tensor, candidates: tuple[float, ...]) -> float:
        """The lam with the most remembered samples right, each left out in turn; then the one with the least loss."""
        model = logits(cast(nn.Module, predictor.model.head), predictor.keys)
        neighbours = predictor.vote(predictor.keys, leave_one_out=True)

        def quality(lam: float) -> tuple[float, float]:
            log_p = mixed(lam, neighbours, model)
            return float(log_p.argmax(1).eq(y).sum()), float(log_p.gather(1, y[:, None]).mean())

        return max(candidates, key=quality)

    def newcomer(self) -> Newcomer:
        return Newcomer("the global model and a memory of its own samples", "the global model")

    def arrival(self, client: Client, down: Message) -> nn.Module:
        return self.received(client, down) if client.n else super().arrival(client, down)


class WithNeighbours(nn.Module):
    """Log-probabilities of a model mixed with its nearest neighbours' labels."""

    def __init__(self, model: nn.Module, keys: Tensor, labels: Tensor, classes: int, k: int, scale: float) -> None:
        super().__init__()
        self.model = model
        self.keys: Tensor
        self.votes: Tensor
        self.register_buffer("keys", keys.flatten(1), persistent=False)
        self.register_buffer("votes", nn.functional.one_hot(labels, classes).double(), persistent=False)
        self.k = k
        self.scale = scale
        self.lam = 0.0

    def forward(self, x: Tensor) -> Tensor:
        z = cast(nn.Module, self.model.body)(x)
        return mixed(self.lam, self.vote(z), cast(nn.Module, self.model.head)(z))

    def vote(self, z: Tensor, leave_one_out: bool = False) -> Tensor:
        """p_knn for every row of z; `leave_one_out` when these are the keys themselves."""
        distance = squared_distances(z.flatten(1), self.keys)
        if leave_one_out:
            distance.fill_diagonal_(torch.inf)
        k = min(self.k, len(self.keys) - leave_one_out)
        nearest, index = distance.topk(k, largest=False)
        share = torch.softmax(-nearest / (self.keys.shape[1] * self.scale), dim=1)  # s / sum s, also far from all keys
        return (share[:, :, None] * self.votes[index]).sum(1)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    if torch.compiler.is_compiling():  # ONNX has no cdist
        return (a[:, None] - b[None]).double().square().sum(2)
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").double().square()


def mixed(lam: float, neighbours: Tensor, scores: Tensor) -> Tensor:
    """log(lam p_knn + (1 - lam) softmax(scores))."""
    votes = (lam * neighbours).log()
    return torch.logaddexp(votes, scores.double().log_softmax(1) + torch.tensor(1 - lam, dtype=torch.float64).log())
