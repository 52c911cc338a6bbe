"""HypCluster (Mansour, Mohri, Ro, Suresh, 2020), which is IFCA (Ghosh et al., NeurIPS 2020) with model averaging."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import nn

from fedpac.client import Client
from fedpac.message import Message
from fedpac.methods.base import Method, Newcomer
from fedpac.models import reinitialised
from fedpac.randomness import stream_seed
from fedpac.replies import HUGE, SAMPLES, Description, NumberLike, like
from fedpac.server import Server
from fedpac.training import evaluate, train
from fedpac.weights import average_of


class HypCluster(Method):
    """k global models; every client trains the one that fits its training data best.

    z_i <- argmin_c F_i(w_c)
    w_i <- E epochs of SGD on F_i from w_{z_i}          w_c <- mean of w_i over {i: z_i = c}, weighted by n_i

    A cluster that nobody chose stays as it is. init = "random" starts from k different initialisations;
    init = "farthest" starts from one model and adds, after each of the first k - 1 rounds, the model of the client that
    its best cluster fits worst, as k-means++ does. k = 1 is FedAvg.
    """

    name: ClassVar[str] = "hypcluster"
    title: ClassVar[str] = "HypCluster"
    family: ClassVar[str] = "clustering"

    averages: ClassVar[bool] = True

    k: Annotated[int, Field(ge=1, le=1000, description="number of clusters")] = 3
    init: Annotated[Literal["random", "farthest"], Field(description="how clusters are initialised")] = "random"

    def setup(self, server: Server) -> None:
        task = server.task
        server.state["w0"] = task.initial
        for c in range(1, self.k if self.init == "random" else 1):
            server.state[f"w{c}"] = reinitialised(task.model, stream_seed(task.seed, f"init {c}"))

    def send(self, server: Server, client: int) -> Message:
        return Message(**{f"w{c}": server.weights(f"w{c}") for c in range(self.clusters(server))})

    def clusters(self, server: Server) -> int:
        """How many there are already."""
        return sum(f"w{c}" in server.state for c in range(self.k))

    def local(self, client: Client, down: Message) -> Message:
        z, loss = self.choose(client, down)
        return Message(w=train(client, down.weights(f"w{z}")), z=z, loss=loss, n=client.n)

    def choose(self, client: Client, down: Message) -> tuple[int, float]:
        """The cluster with the lowest loss on the client's training data, and that loss."""
        losses = [evaluate(client.with_weights(down.weights(f"w{c}")), *client.train_set)[1] for c in range(len(down))]
        z = losses.index(min(losses))
        return z, losses[z]

    def replies(self, server: Server, client: int, down: Message) -> Description:
        return {
            "w": like(server.weights("w0"), server.task.buffers),
            "z": NumberLike(0, len(down) - 1, whole=True),
            "loss": NumberLike(0, HUGE),
            "n": SAMPLES,
        }

    def sums(self) -> tuple[str, ...]:
        return ("w",)

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        cluster = {i: int(up.number("z")) for i, up in replies.items()}
        if (known := self.clusters(server)) < self.k:
            worst = max(replies, key=lambda i: replies[i].number("loss"))
            cluster[worst] = known  # the worst fitted client starts a cluster of its own
        for c in set(cluster.values()):
            server.move(f"w{c}", average_of({i: up for i, up in replies.items() if cluster[i] == c}, "w"))

    def received(self, client: Client, down: Message) -> nn.Module:
        return client.with_weights(down.weights(f"w{self.choose(client, down)[0]}"))

    def personal(self, client: Client, down: Message, up: Message) -> nn.Module:
        return client.with_weights(up.weights("w"))

    def newcomer(self) -> Newcomer:
        return Newcomer("the model of the cluster that fits its samples best")

    def welcome(self, server: Server, hello: Message | None = None) -> Message:
        return Message(**server.state)
