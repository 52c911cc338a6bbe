"""FedCCFA (Chen et al., NeurIPS 2024): heads clustered class by class, for concepts that differ or drift."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.collaboration.centroids import Centroids, local_centroids
from fedpac.message import Message, Weights
from fedpac.methods.base import centroids_like
from fedpac.methods.fedrep import FedRep
from fedpac.models import section
from fedpac.mods.dp import Kind
from fedpac.replies import Description, like
from fedpac.server import Server
from fedpac.training import Batch, Loss, cross_entropy, head_cross_entropy, train
from fedpac.weights import average_of


class FedCCFA(FedRep):
    """FedRep whose heads are averaged row by row, among clients that mean the same by a class.

    client:  b_i     <- 1 epoch from the common first head on `balanced` samples of each class; body fixed
             phi_i   <- 1 epoch on F_i, body fixed
             theta_i <- E epochs on F_i + H(p_i) / gamma CE(cos(f(x), a_i) / temperature, y)      from round `begin` on
             c_i     <- class means of the features with the new body
    server:  theta   <- sum_i n_i / n theta_i
             for each class k: clients i, j are neighbours where the mean over all others z of
             |cos(b_ik, b_zk) - cos(b_jk, b_zk)| is at most eps, and groups are what neighbours connect;
             phi_ik, a_ik <- means of phi_jk and c_jk over the group of i, weighted by n_jk

    H is the entropy of the client's labels. A client that lacks a class gets the mean of all that have it; public code
    fails there. What of a head has no row for each class is averaged over all.
    """

    name: ClassVar[str] = "fedccfa"
    title: ClassVar[str] = "FedCCFA"
    family: ClassVar[str] = "collaboration"
    needs_classes: ClassVar[bool] = True

    eps: Annotated[float, Field(ge=0, le=2, description="maximum distance between neighbours")] = 0.1
    balanced: Annotated[int, Field(ge=1, description="maximum samples per class for the balanced head")] = 5
    temperature: Annotated[float, Field(gt=0, le=1e3, description="temperature of the alignment")] = 0.1
    gamma: Annotated[float, Field(gt=0, le=1e6, description="divisor of the alignment strength")] = 20.0
    begin: Annotated[int, Field(ge=2, description="first round with alignment")] = 21

    def setup(self, server: Server) -> None:
        super().setup(server)
        server.state["head"] = section(server.task.initial, "head")

    def send(self, server: Server, client: int) -> Message:
        head = server.state.get(f"head.{client}", server.state["head"])
        if f"anchors.{client}" not in server.state:
            return Message(w=server.weights("w"), head=head)
        return Message(w=server.weights("w"), head=head, anchors=server.weights(f"anchors.{client}"))

    def assemble(self, client: Client, down: Message) -> Weights:
        return {**down.weights("w"), **down.weights("head")}

    def local(self, client: Client, down: Message) -> Message:
        w = self.assemble(client, down)
        z = self.look(client, w, "head")
        balanced = self.balanced_head(client, w, z)
        w = self.head_then_body(client, w, z, self.body_loss(client, down))
        centroids = local_centroids(self.look(client, w, "centroids"), client.train_set[1], client.classes)
        return Message(
            w=section(w, "body"), head=section(w, "head"), balanced=balanced, centroids=centroids.to_tensors(),
            n=client.n,
        )  # fmt: skip

    def balanced_head(self, client: Client, w: Weights, z: Tensor) -> Weights:
        """From the head that all began with, on equally many samples of each class that the client has."""
        y, counts = client.train_set[1], client.class_counts
        each = min(self.balanced, int(counts[counts > 0].min()))
        order = torch.randperm(client.n, generator=client.stream("balanced")).to(client.device)
        chosen = torch.cat([order[y[order] == k][:each] for k in counts.nonzero().flatten()])
        start = {**w, **section(client.initial, "head")}
        batches = chosen[torch.randperm(len(chosen), generator=client.stream("balanced order")).to(client.device)]
        trained = train(
            client, start, part="head", loss=head_cross_entropy, inputs=z, lr=self.head_lr, purpose="balanced",
            batches=torch.split(batches, client.recipe.batch),
        )  # fmt: skip
        return section(trained, "head")

    def body_loss(self, client: Client, down: Message) -> Loss:
        if client.round < self.begin or "anchors" not in down:
            return cross_entropy
        p = client.class_counts[client.class_counts > 0].double() / client.n
        entropy = float(-(p * p.log()).sum())
        return drawn_to_anchors(entropy / self.gamma, self.temperature, Centroids.from_tensors(down.weights("anchors")))

    def replies(self, server: Server, client: int, down: Message) -> Description:
        head = like(section(server.task.initial, "head"), server.task.buffers)
        own = {"head": head, "balanced": head, "centroids": centroids_like(server, f"anchors.{client}")}
        return {**super().replies(server, client, down), **own}

    def protects(self) -> Mapping[str, Kind]:
        return {}  # nobody has worked out what its balanced heads tell

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        super().merge(server, replies)
        K = server.task.classes
        centroids = [Centroids.from_tensors(up.weights("centroids")) for up in replies.values()]
        counts = torch.stack([c.counts for c in centroids]).double()
        shares = torch.stack([self.shares(replies, counts, k) for k in range(K)])  # (K, receiver, sender)
        means = torch.stack([c.means for c in centroids])
        common = average_of(replies, "head")
        for at, i in enumerate(replies):
            head = {}
            for name, mean in common.items():
                rows = torch.stack([up.weights("head")[name] for up in replies.values()])
                by_class = mean.dim() > 0 and len(mean) == K and mean.is_floating_point()
                head[name] = mixed_rows(shares[:, at], rows) if by_class else mean
            server.state[f"head.{i}"] = head
            known = (counts.sum(0) > 0).long()
            anchors = Centroids(known * counts.sum(0).long(), mixed_rows(shares[:, at], means) * known[:, None])
            server.state[f"anchors.{i}"] = anchors.to_tensors()

    def welcome(self, server: Server, hello: Message | None = None) -> Message:
        return Message(w=server.weights("w"), head=server.weights("head"))

    def shares(self, replies: dict[int, Message], counts: Tensor, k: int) -> Tensor:
        """How much each client gives to each for this class; rows sum to one."""
        m = len(counts)
        holders = counts[:, k].nonzero().flatten()
        if not len(holders):
            return torch.eye(m, dtype=torch.float64)
        rows = [class_row(up.weights("balanced"), k, counts.shape[1]) for up in replies.values()]
        near = neighbours(torch.stack([rows[j] for j in holders.tolist()]), self.eps)
        _, groups = connected_components(near.numpy(), directed=False)
        group = torch.full((m,), -1, dtype=torch.int64)
        group[holders] = torch.from_numpy(groups).long()
        together = (group[:, None] == group[None]) | (group == -1)[:, None]  # who lacks the class hears all
        given = together * counts[:, k]
        return given / given.sum(1, keepdim=True)


def class_row(head: Weights, k: int, classes: int) -> Tensor:
    """All that a head has for class k, as one vector."""
    tensors = [tensor for _, tensor in sorted(head.items())]  # clients' messages may hold them in different orders
    rows = [t[k].flatten().double() for t in tensors if t.dim() and len(t) == classes and t.is_floating_point()]
    return torch.cat(rows) if rows else torch.ones(1, dtype=torch.float64)


def neighbours(rows: Tensor, eps: float) -> Tensor:
    """Whose rows look alike to all others (m, m, bool); two clients alone are compared with each other."""
    unit = F.normalize(rows, dim=1)
    cosine = unit @ unit.T
    m = len(rows)
    if m < 3:
        return 1 - cosine <= eps
    distance = torch.stack([(cosine[i] - cosine).abs().sum(1) for i in range(m)])
    own = (cosine.diagonal()[:, None] - cosine).abs()  # what i and j themselves add, each once
    return (distance - own - own.T) / (m - 2) <= eps


def mixed_rows(shares: Tensor, rows: Tensor) -> Tensor:
    """Row k is sum_j shares[k, j] rows[j, k]."""
    return torch.einsum("kj,jk...->k...", shares, rows.double()).to(rows.dtype)


def drawn_to_anchors(strength: float, temperature: float, anchors: Centroids) -> Loss:
    """Cross-entropy, and strength times that of telling the right anchor by its direction."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        z = cast(nn.Module, model.body)(batch.x)
        cosine = F.normalize(z.flatten(1), dim=1) @ F.normalize(anchors.means.to(z), dim=1).T
        scores = (cosine / temperature).masked_fill(~anchors.present, -torch.inf)
        known = anchors.present[batch.y]
        aligned = F.cross_entropy(scores[known], batch.y[known], reduction="sum") / len(batch.y)
        value: Tensor = F.cross_entropy(cast(nn.Module, model.head)(z), batch.y) + strength * aligned
        return value

    return loss
