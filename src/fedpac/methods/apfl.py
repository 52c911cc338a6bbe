"""APFL (Deng, Kamani, Mahdavi, 2020)."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

from fedpac.client import Client
from fedpac.message import Message, Weights
from fedpac.methods.base import Which
from fedpac.methods.fedavg import FedAvg
from fedpac.models import weights_of
from fedpac.training import Batch, Loss, forked_rng, train


class APFL(FedAvg):
    """A mixture of a global and a personal model, both trained on the same batches.

    mixed_i = alpha v_i + (1 - alpha) w_i
    w_i <- w_i - lr grad F_i(w_i)          w <- sum_i n_i / n  w_i
    v_i <- v_i - lr alpha grad F_i(mixed_i)
    adaptive:  alpha <- alpha - lr <v_i - w_i, grad F_i(mixed_i)>, kept within [0, 1]

    The parameters are mixed, as in the paper's equations; its authors' code mixes logits instead. Momentum and weight
    decay act on w and v, never on alpha. alpha = 0 is FedAvg, alpha = 1 is Local-only.
    """

    name: ClassVar[str] = "apfl"
    title: ClassVar[str] = "APFL"
    family: ClassVar[str] = "multi-task"
    reported: ClassVar[Which] = "personal"

    alpha: Annotated[float, Field(ge=0, le=1, description="share of the personal model in the mixture")] = 0.25
    adaptive: Annotated[bool, Field(description="learn alpha for each client, starting from the given one")] = False

    def local(self, client: Client, down: Message) -> Message:
        alpha = torch.tensor(
            self.share(client), dtype=client.task.dtype, device=client.device, requires_grad=self.adaptive
        )
        pair = nn.ModuleDict({"w": client.own_model(down.weights("w")), "v": client.own_model(client.weights("v"))})

        def learn_share(_: nn.Module) -> None:
            if alpha.grad is not None:
                alpha.sub_(alpha.grad, alpha=client.rate()).clamp_(0, 1)
                alpha.grad = None

        trained = train(client, weights_of(pair), model=pair, loss=pair_loss(alpha), after_step=learn_share)
        client.state["v"] = half(trained, "v")
        if self.adaptive:
            client.state["alpha"] = float(alpha.detach())
        return Message(w=half(trained, "w"), n=client.n)

    def share(self, client: Client) -> float:
        alpha = client.state.get("alpha", self.alpha)
        assert isinstance(alpha, float)
        return alpha

    def received(self, client: Client, down: Message) -> nn.Module:
        return client.with_weights(mix(self.share(client), client.weights("v"), down.weights("w")))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return self.received(client, up)


def pair_loss(alpha: Tensor) -> Loss:
    """F(w) + F(alpha v + (1 - alpha) w), where the second term teaches v and alpha only."""

    def loss(pair: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(pair, nn.ModuleDict)
        w, v = pair["w"], pair["v"]
        with forked_rng(batch.x.device):  # the same dropout in both, and as much of it drawn as FedAvg draws
            loss_w = batch.loss(w(batch.x))
        # mixed as one vector, laid out as train() lays out a single model: alpha = 1 is Local-only to the last bit
        vector = (
            alpha * parameters_to_vector(v.parameters()) + (1 - alpha) * parameters_to_vector(w.parameters()).detach()
        )
        pieces = torch.split(vector, [p.numel() for p in v.parameters()])
        mixed = {name: piece.view_as(p) for (name, p), piece in zip(v.named_parameters(), pieces, strict=True)}
        return loss_w + batch.loss(functional_call(v, mixed, (batch.x,)))

    return loss


def half(weights: Weights, of: str) -> Weights:
    return {name.removeprefix(f"{of}."): t for name, t in weights.items() if name.startswith(f"{of}.")}


def mix(alpha: float, v: Weights, w: Weights) -> Weights:
    """alpha v + (1 - alpha) w, running statistics included; a counter is taken from v."""
    return {name: alpha * t + (1 - alpha) * w[name] if t.is_floating_point() else t for name, t in v.items()}
