"""FedPAC+: FedPAC in fewer rounds."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fedpac.client import Client
from fedpac.errors import ConfigError
from fedpac.message import Message
from fedpac.methods.fedpac import FedPAC
from fedpac.models import trainable
from fedpac.mods.dp import Kind
from fedpac.optimizers import Optimizer
from fedpac.replies import Description, tensor_like
from fedpac.server import Server
from fedpac.training import Correction, controlled, flatten, steps_per_epoch, unflatten
from fedpac.weights import average_of, weighted_sum


class FedPACPlus(FedPAC):
    """FedPAC with larger steps of the shared body, corrected for client drift, and statistics of augmented images.

    server:  v <- momentum v + (sum_i n_i/n theta_i - theta)      theta <- theta + v       in place of eq. (f_agg)
    client:  the body trains at `rate` times the recipe's learning rate, falling as 1/t from t = `falls_from` on,
             with g + s (h - h_i) for every gradient g; h_i <- the mean of the round's g, h <- their mean
             s = min(1, K / full_control), with K the client's steps in the round
             lambda grows linearly to `growth` times what it was, over `growth_rounds` rounds
             mu_i, V_i, c_i and the head see augmented images, where training does
             t counts the rounds that the client has taken part in

    Averaging m clients divides the noise of their steps by m, so the body bears larger ones, and directions that rounds
    agree on add up. Control variates (SCAFFOLD) take out what pulls a body towards its own client's classes. The
    alignment grows: centroids of an untrained body are poor targets, but a body that knows its own images by heart has
    nothing else left to learn from. Once it has settled, large steps only make it wander. Features of images known by
    heart are too tidy to fit a head on. With momentum = 0, rate = 1, falls_from = 0, control = false, growth = 1 and
    augmented = false it is FedPAC, bit for bit. A `server.optimizer` takes the place of the momentum and its warm-up.

    Where clients take few steps, h_i feeds itself: g answers to the correction, and becomes the next one. With s = 1
    and ten steps a round, training diverged; with s = 1/2 it did not.
    """

    name: ClassVar[str] = "fedpac-plus"
    title: ClassVar[str] = "FedPAC+"
    encryptable_with: ClassVar[str] = "method.momentum = 0 and method.control = false"
    younger: ClassVar[Mapping[str, object]] = {
        **FedPAC.younger, "control": False, "full_control": 20, "warmup": 0, "growth": 1.0, "growth_rounds": 100,
        "falls_from": 0,
    }  # fmt: skip

    momentum: Annotated[float, Field(ge=0, lt=1, description="server momentum of the body")] = 0.5
    warmup: Annotated[int, Field(ge=0, description="rounds over which the momentum grows from zero")] = 10
    rate: Annotated[
        float, Field(gt=0, le=100, description="learning rate of the body, as a multiple of training.lr")
    ] = 2.0
    falls_from: Annotated[
        int,
        Field(
            ge=0, description="the client's round t from which the rate falls as 1/t, whatever the schedule; 0: never"
        ),
    ] = 50
    control: Annotated[bool, Field(description="control variates against the drift of the body")] = True
    full_control: Annotated[
        int, Field(ge=1, description="local steps a round from which control variates have their full strength")
    ] = 20
    growth: Annotated[float, Field(ge=1, le=1e6, description="how many times stronger the alignment becomes")] = 5.0
    growth_rounds: Annotated[int, Field(ge=1, description="rounds of a client over which its alignment grows")] = 100
    augmented: Annotated[bool, Field(description="statistics, head and centroids from augmented images")] = True

    def optimizer(self) -> Optimizer | None:
        return Optimizer(momentum=self.momentum, warmup=self.warmup) if self.momentum else None

    def body_lr(self, client: Client) -> float:
        fall = max(1.0, self.turn(client) / self.falls_from) if self.falls_from else 1.0
        return self.rate * client.recipe.lr / fall

    def alignment_strength(self, client: Client) -> float:
        return self.lam * (1 + (self.growth - 1) * min(1.0, (self.turn(client) - 1) / self.growth_rounds))

    @staticmethod
    def turn(client: Client) -> int:
        """How many rounds the client has taken part in, this one included: where few do, bodies settle later."""
        turns = client.state.get("turns", 0.0)
        assert isinstance(turns, float)
        return 1 + int(turns)

    def setup(self, server: Server) -> None:
        super().setup(server)
        if self.control and (names := self.body_parameters(server)):
            server.state["control"] = {name: torch.zeros_like(server.task.initial[name]) for name in names}

    @staticmethod
    def body_parameters(server: Server) -> list[str]:
        return [name for name, _ in trainable(server.task.model, "body")]

    def send(self, server: Server, client: int) -> Message:
        down = super().send(server, client)
        return Message(**down, control=server.state["control"]) if "control" in server.state else down

    def local(self, client: Client, down: Message, correction: Correction | None = None) -> Message:
        up = self.without_drift(client, down) if "control" in down else super().local(client, down, correction)
        if self.falls_from or self.growth > 1:
            client.state["turns"] = float(self.turn(client))
        return up

    def without_drift(self, client: Client, down: Message) -> Message:
        everybodys = down.weights("control")
        h = flatten(everybodys, client.model, "body")
        drift = controlled(self.strength(client) * (h - client.tensor("control", torch.zeros_like(h))))
        up = super().local(client, down, drift)
        client.state["control"] = drift.mean
        return Message(**up, control=unflatten(drift.mean, everybodys, client.model, "body"))

    def strength(self, client: Client) -> float:
        epochs = client.recipe.epochs if self.body_epochs is None else self.body_epochs
        return min(1.0, epochs * steps_per_epoch(client.n, client.recipe.batch) / self.full_control)

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        super().merge(server, replies)
        if "control" in server.state:  # of those who were not there, it holds what they once sent
            share = len(replies) / server.task.clients
            kept, new = server.weights("control"), average_of(replies, "control")
            server.state["control"] = weighted_sum([kept, new], [1 - share, share])

    def replies(self, server: Server, client: int, down: Message) -> Description:
        described = super().replies(server, client, down)
        if "control" not in server.state:
            return described
        return {**described, "control": {n: tensor_like(server.task.initial[n]) for n in self.body_parameters(server)}}

    def sums(self) -> tuple[str, ...]:
        return () if self.control else super().sums()  # h lasts: too many products for a ciphertext

    def protects(self) -> Mapping[str, Kind]:
        if self.control:
            raise ConfigError(
                f"method {self.name}: differential privacy needs method.control = false; the noise on control variates "
                "would enter every step"
            )
        return super().protects()
