"""What a method is: frozen hyper-parameters and a few short functions. It stores nothing on itself."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from fedpac.client import Client
from fedpac.errors import ConfigError
from fedpac.message import Message
from fedpac.mods.dp import Kind
from fedpac.optimizers import Optimizer
from fedpac.replies import Description, TensorLike, class_counts, class_means
from fedpac.robust import Rule
from fedpac.server import Server

Which: TypeAlias = Literal["received", "personal"]
T = TypeVar("T")


def centroids_like(server: Server, name: str) -> dict[str, TensorLike]:
    """What a client's class means look like in its reply; the server keeps everybody's under this name."""
    task = server.task
    dtype = next((t.dtype for t in task.initial.values() if t.is_floating_point()), torch.float32)
    known = server.weights(name)["means"] if name in server.state else None
    means = class_means(task.classes, task.features, dtype, known)
    return {"counts": class_counts(task.classes, of="n"), "means": means}


def check_optimizer(method: "Method", optimizer: Optimizer | None) -> None:
    """An error if the server has an optimizer, and the method no averages for it."""
    if optimizer is not None and not method.averages:
        raise ConfigError(
            f"server.optimizer = '{optimizer.kind}': method {method.name} does not average models, so it has no "
            "effect; set it to 'none'"
        )


def check_aggregation(method: "Method", rule: Rule | None) -> None:
    """An error if the server has a robust rule, and the method no averages for it."""
    if rule is not None and not method.averages:
        raise ConfigError(
            f"server.aggregation = '{rule.kind}': method {method.name} does not average models, so it has no effect; "
            "set it to 'mean'"
        )


def returned(method: "Method", function: str, value: Any, kind: type[T], expected: str) -> T:
    """The value, if it is what the method's function should give; else an error that names both."""
    if not isinstance(value, kind):
        given = "nothing" if value is None else f"a {type(value).__name__}"
        raise ConfigError(f"method {method.name}: {function}() returned {given}; expected {expected}")
    return value


@dataclass(frozen=True)
class Newcomer:
    """What a client gets that never took part, in words.

    labelled   where it has labelled samples of its own; empty: the method shares nothing that predicts
    without    where it has none; empty: then it gets nothing
    """

    labelled: str = ""
    without: str = ""


class Method(BaseModel, ABC):
    """One federated learning method.

    A round is  local(client, send(server, i)) for every chosen client i, then merge(server, replies); wave by wave, if
    `waves` divides the chosen clients.
    `received` and `personal` say what a client would predict with: what it has on receiving the server's message,
    and what it has after local training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    title: ClassVar[str]
    family: ClassVar[str] = "of your own"
    reported: ClassVar[Which] = "received"  # which of the two accuracies the method's paper speaks of
    averages: ClassVar[bool] = False  # whether the server moves to averages (server.move), which an optimizer may steer
    younger: ClassVar[Mapping[str, object]] = {}  # settings that came later: at these values, old runs go on
    encryptable_with: ClassVar[str] = ""  # settings with which the server needs sums only, where the defaults need more
    needs_classes: ClassVar[bool] = False  # whether its rule makes no sense where a number is predicted
    revision: ClassVar[int] = 1  # raised when equal settings give other numbers, so that no older checkpoint goes on

    def __setattr__(self, name: str, value: Any) -> None:
        raise ConfigError(
            f"method {self.name}: '{name}' is set on the method, which is frozen and shared by all clients; put "
            "anything to remember into client.state or server.state"
        )

    @abstractmethod
    def setup(self, server: Server) -> None:
        """Fill the server's state before the first round."""

    @abstractmethod
    def send(self, server: Server, client: int) -> Message:
        """What the server sends to this client."""

    @abstractmethod
    def local(self, client: Client, down: Message) -> Message:
        """What the client does with it, and its answer."""

    @abstractmethod
    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        """What the server does with the answers, which come in client order."""

    @abstractmethod
    def received(self, client: Client, down: Message) -> nn.Module:
        """The model a client predicts with before local training."""

    @abstractmethod
    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        """The model a client predicts with after local(client, down), which answered `up`."""

    def replies(self, server: Server, client: int, down: Message) -> Description | None:
        """What this client's answer to `down` must look like, for the server to check it before it merges.

        Where a method does not say, only numbers that are infinite or not a number are refused.
        """
        return None

    def sums(self) -> tuple[str, ...]:
        """The parts of a reply of which the server needs weighted sums only, and so need not be able to read."""
        return ()

    def protects(self) -> Mapping[str, Kind]:
        """What the parts of a reply are to differential privacy (fedpac.mods.dp); all of them, or it is refused."""
        return {}

    def condense(self, replies: dict[int, Message]) -> dict[int, Message]:
        """The same replies, or fewer that stand for them: thousands need not be in memory until all have come."""
        return replies

    def optimizer(self) -> Optimizer | None:
        """The server optimizer that is part of the method; one that the user asks for takes its place."""
        return None

    def waves(self, chosen: list[int]) -> list[list[int]]:
        """Who trains at the same time. A wave begins when the server has merged the answers of the one before."""
        return [chosen]

    def peer_weights(self, server: Server) -> list[tuple[int, int, float]]:
        """(client, peer, weight) of the last merge, for methods that weigh peers."""
        return []

    def grow(self, server: Server, before: int) -> None:
        """Clients have come to stay: the server's state was made for fewer, and is now for `server.task.clients`."""

    # --- a client that never took part ---

    def newcomer(self) -> Newcomer:
        """What a newcomer gets."""
        return Newcomer()

    def welcome(self, server: Server, hello: Message | None = None) -> Message:
        """What the server sends to a newcomer: first without, and then in answer to what it said of itself."""
        raise NotImplementedError(f"method {self.name}: newcomer() promises a model, but there is no welcome()")

    def introduce(self, client: Client, down: Message) -> Message:
        """What a newcomer says of itself, once. Where that is nothing, the first message is all it gets."""
        return Message()

    def introduction(self, server: Server) -> Description:
        """What that must look like, for the server to check it."""
        return {}

    def arrival(self, client: Client, down: Message) -> nn.Module:
        """The model that a newcomer predicts with. Where it has no labelled samples, `client.n` is 0."""
        return self.received(client, down)
