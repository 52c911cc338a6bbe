"""What a method is: frozen hyper-parameters and a few short functions. It stores nothing on itself."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict
from torch import nn

from fedpac.client import Client
from fedpac.message import Message
from fedpac.server import Server

Which: TypeAlias = Literal["received", "personal"]


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
    revision: ClassVar[int] = 1  # raised when equal settings give other numbers, so that no older checkpoint goes on

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

    def waves(self, chosen: list[int]) -> list[list[int]]:
        """Who trains at the same time. A wave begins when the server has merged the answers of the one before."""
        return [chosen]

    def peer_weights(self, server: Server) -> list[tuple[int, int, float]]:
        """(client, peer, weight) of the last merge, for methods that weigh peers."""
        return []
