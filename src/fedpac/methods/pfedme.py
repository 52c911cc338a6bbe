"""pFedMe (Dinh, Tran, Nguyen, NeurIPS 2020)."""

from itertools import islice
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.errors import ConfigError
from fedpac.message import Message
from fedpac.methods.base import Which
from fedpac.methods.fedavg import FedAvg
from fedpac.models import trainable
from fedpac.server import Server
from fedpac.training import flatten, proximal, shuffled_batches, steps_per_epoch, train, unflatten
from fedpac.weights import average_of


class PFedMe(FedAvg):
    """A personal model near the global one (Moreau envelope), which in turn follows the personal models.

    theta_i, w_i <- w; then R times, on one mini-batch each:
        theta_i <- K steps of SGD on F_i(theta_i) + lam/2 |theta_i - w_i|^2 from theta_i
        w_i     <- w_i - eta lam (w_i - theta_i)
    w <- (1 - beta) w + beta sum_i n_i / n  w_i

    theta_i is the personal model. R is by default all batches of E epochs, so a round takes K times FedAvg's gradients.
    """

    name: ClassVar[str] = "pfedme"
    title: ClassVar[str] = "pFedMe"
    family: ClassVar[str] = "multi-task"
    reported: ClassVar[Which] = "personal"
    revision: ClassVar[int] = 2  # R is all batches of E epochs

    lam: Annotated[float, Field(gt=0, le=1e6, description="lambda, strength of the pull towards the global model")] = (
        10.0
    )
    steps: Annotated[int, Field(ge=1, le=10_000, description="K, SGD steps on each mini-batch")] = 5
    local_rounds: Annotated[
        int | None, Field(ge=1, le=1_000_000, description="R, mini-batches per round; default: all of E epochs")
    ] = None
    lr: Annotated[float | None, Field(gt=0, description="learning rate of theta; default: training.lr")] = None
    eta: Annotated[float | None, Field(gt=0, description="learning rate of w; default: training.lr")] = None
    beta: Annotated[float, Field(gt=0, le=10, description="how far the global model moves towards the average")] = 1.0

    def setup(self, server: Server) -> None:
        follow = (self.eta or server.task.recipe.lr) * self.lam
        if follow >= 1:
            raise ConfigError(
                f"method pfedme: eta * lam = {follow:g}; it must be below 1, or the global model overshoots the "
                "personal ones: choose a smaller eta (the learning rate, where not given) or a smaller lam"
            )
        super().setup(server)

    def local(self, client: Client, down: Message) -> Message:
        w = flatten(down.weights("w"), client.model)
        follow = client.rate(self.eta) * self.lam
        taken = 0

        def move_w(model: nn.Module) -> None:
            nonlocal taken
            taken += 1
            if taken % self.steps == 0:
                w.lerp_(torch.cat([theta.reshape(-1) for _, theta in trainable(model)]), follow)

        theta = train(
            client, down.weights("w"), correction=proximal(self.lam, w), after_step=move_w,
            batches=[batch for batch in self.batches(client) for _ in range(self.steps)], lr=self.lr,
        )  # fmt: skip
        client.state["theta"] = theta
        return Message(w=unflatten(w, theta, client.model), n=client.n)

    def batches(self, client: Client) -> list[Tensor]:
        recipe = client.recipe
        rounds = self.local_rounds or recipe.epochs * steps_per_epoch(client.n, recipe.batch)
        shuffled = shuffled_batches(client.n, recipe.batch, rounds, client.stream("train"), client.device)
        return list(islice(shuffled, rounds))

    def sums(self) -> tuple[str, ...]:
        return ("w",) if self.beta == 1 else ()

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        if self.beta == 1:
            return super().merge(server, replies)
        model, mean = server.task.model, average_of(replies, "w")
        old = flatten(server.weights("w"), model)
        # Parameters only: running statistics must stay within what was measured, also for beta > 1.
        server.move("w", unflatten(old.lerp(flatten(mean, model), self.beta), mean, model))

    def received(self, client: Client, down: Message) -> nn.Module:
        theta = client.state.get("theta", down["w"])  # until it has its own, theta is where it would start
        assert isinstance(theta, dict)
        return client.with_weights(theta)

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return self.received(client, down)
