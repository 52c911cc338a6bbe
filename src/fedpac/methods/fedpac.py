"""FedPAC (Xu, Tong, Huang, ICLR 2023): feature alignment and classifier collaboration."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.collaboration.centroids import (
    Centroids,
    alignment_targets,
    centroids_of_sums,
    global_centroids,
    local_centroids,
    renewed,
    shares_of_sums,
)
from fedpac.collaboration.statistics import FeatureStatistics, feature_statistics
from fedpac.collaboration.weights import Covariance, bounded, combination_weights, newcomer_weights, only_from
from fedpac.errors import ConfigError, RunError
from fedpac.message import Message, Weights
from fedpac.methods.base import Newcomer, centroids_like
from fedpac.methods.fedrep import FedRep
from fedpac.models import section
from fedpac.mods.dp import Kind
from fedpac.replies import HUGE, SAMPLES, Description, TensorLike, class_counts, class_means, like
from fedpac.robust import near_others
from fedpac.server import Server
from fedpac.training import Correction, Loss, aligned_cross_entropy, cross_entropy
from fedpac.weights import average_of, combined, weighted_sum


class FedPAC(FedRep):
    """A shared body aligned across clients, under heads combined for each client (Algorithm 1).

    client:  mu_i, V_i  <- feature statistics with the received body                       (appendix A.3)
             phi_i      <- 1 epoch on F_i, body fixed                                      eq. (local_train_g)
             theta_i    <- E epochs on F_i + lam/n sum_l |f(x_l) - c_{y_l}|^2 / d          eq. (local_train_f)
             c_i        <- class means of the features with the new body                   eq. (local_proto)
    server:  theta <- sum_i n_i/n theta_i      c_k <- sum_i n_ik/n_k c_ik                  eq. (f_agg), (c)
             alpha_i <- argmin over the simplex of the expected testing loss R_i           eq. (quad)
             phi_i   <- sum_j alpha_ij phi_j                                               eq. (g_agg)
    """

    name: ClassVar[str] = "fedpac"
    title: ClassVar[str] = "FedPAC"
    family: ClassVar[str] = "collaboration"
    needs_classes: ClassVar[bool] = True
    younger: ClassVar[Mapping[str, object]] = {"most_weight": 1.0, "summed_centroids": False}

    lam: Annotated[float, Field(ge=0, le=1e6, description="lambda, strength of the feature alignment")] = 1.0
    alignment: Annotated[bool, Field(description="align features with the global centroids (FA)")] = True
    collaboration: Annotated[bool, Field(description="combine the heads (CC)")] = True
    covariance: Annotated[Covariance, Field(description="the feature covariance of Theorem 1")] = "identity"
    centre: Annotated[bool, Field(description="zero-centre the features before computing weights (Assumption 2)")] = (
        False
    )
    ridge: Annotated[float, Field(ge=0, description="regularisation of a covariance before it is inverted")] = 1e-3
    cutoff: Annotated[float, Field(ge=0, lt=1, description="smaller weights are set to zero")] = 1e-3
    most_weight: Annotated[float, Field(gt=0, le=1, description="maximum weight of one client in another's head")] = 1.0
    summed_centroids: Annotated[
        bool, Field(description="send centroids as sums, so that an encrypted server need not read them")
    ] = False

    def setup(self, server: Server) -> None:
        super().setup(server)
        server.state["head"] = section(server.task.initial, "head")

    def send(self, server: Server, client: int) -> Message:
        head = server.state.get(f"head.{client}", server.state["head"])
        if "centroids" not in server.state:  # the first round: there is nothing to align with yet
            return Message(w=server.weights("w"), head=head)
        return Message(w=server.weights("w"), head=head, centroids=server.weights("centroids"))

    def assemble(self, client: Client, down: Message) -> Weights:
        return {**down.weights("w"), **down.weights("head")}

    def local(self, client: Client, down: Message, correction: Correction | None = None) -> Message:
        w = self.assemble(client, down)
        z = self.look(client, w, "head")
        statistics = {"statistics": self.statistics(client, z)} if self.sends_statistics else {}
        w = self.head_then_body(client, w, z, self.body_loss(client, down, z), correction)
        centroids = local_centroids(self.look(client, w, "centroids"), client.train_set[1], client.classes)
        return Message(
            w=section(w, "body"),
            head=section(w, "head"),
            centroids=shares_of_sums(centroids) if self.summed_centroids else centroids.to_tensors(),
            n=client.n,
            **statistics,
        )

    @property
    def sends_statistics(self) -> bool:
        """Heads are combined by them; a server that reads centroids gets them in any case, as it always did."""
        return self.collaboration or not self.summed_centroids

    def statistics(self, client: Client, z: Tensor) -> Weights:
        whole = self.covariance != "identity"
        return feature_statistics(z, client.train_set[1], client.classes, covariance=whole).to_tensors()

    def body_loss(self, client: Client, down: Message, z: Tensor) -> Loss:
        lam = self.alignment_strength(client)
        if not self.alignment or lam == 0 or "centroids" not in down:
            return cross_entropy
        sent = down.weights("centroids")
        shared = centroids_of_sums(**sent) if self.summed_centroids else Centroids.from_tensors(sent)
        own = local_centroids(z, client.train_set[1], client.classes)  # for a class nobody has sent yet
        return aligned_cross_entropy(lam, alignment_targets(shared, own))

    def alignment_strength(self, client: Client) -> float:
        return self.lam

    def replies(self, server: Server, client: int, down: Message) -> Description:
        task = server.task
        summed = {
            "sums": class_means(task.classes, task.features, task.dtype),
            "shares": TensorLike(task.dtype, (task.classes,), -HUGE, HUGE),
        }
        own: Description = {
            "head": like(section(task.initial, "head"), task.buffers),
            "centroids": summed if self.summed_centroids else centroids_like(server, "centroids"),
        }
        statistics = self.introduction(server) if self.sends_statistics else {}
        return {**super().replies(server, client, down), **own, **statistics}

    def sums(self) -> tuple[str, ...]:
        return ("w", "head", "centroids") if self.summed_centroids else ("w", "head")

    def protects(self) -> Mapping[str, Kind]:
        if not self.summed_centroids or self.covariance != "identity":
            raise ConfigError(
                f"method {self.name}: differential privacy needs method.summed_centroids = true and "
                "method.covariance = 'identity', so that less must be hidden"
            )
        heads: dict[str, Kind] = (
            {"head": "each", "statistics": "statistics"} if self.collaboration else {"head": "kept"}
        )
        return {**super().protects(), **heads, "centroids": "centroids"}

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        super().merge(server, replies)
        self.merge_centroids(server, replies)
        ids, heads = list(replies), {i: up.weights("head") for i, up in replies.items()}
        rows: list[tuple[int, int, float]] = []
        near = near_others([up.weights("w") for up in replies.values()])
        for i, alpha in zip(ids, only_from(near, self.weights(replies)), strict=True):
            used = {ids[j]: float(alpha[j]) for j in alpha.nonzero().flatten().tolist()}
            server.state[f"head.{i}"] = combined(i, heads, used)  # eq. (g_agg)
            rows += [(i, j, weight) for j, weight in used.items()]
        server.state["alpha"] = torch.tensor(rows, dtype=torch.float64)
        self.remember(server, {ids[j]: replies[ids[j]] for j in near})

    def merge_centroids(self, server: Server, replies: dict[int, Message]) -> None:
        """eq. (c). As sums, a class that nobody had in this round has none: its clients align with their own."""
        if self.summed_centroids:
            server.state["centroids"] = average_of(replies, "centroids")
            return
        centroids = global_centroids([Centroids.from_tensors(up.weights("centroids")) for up in replies.values()])
        if "centroids" in server.state:
            centroids = renewed(Centroids.from_tensors(server.weights("centroids")), centroids)
        server.state["centroids"] = centroids.to_tensors()

    def remember(self, server: Server, replies: dict[int, Message]) -> None:
        """The heads and statistics of the last round, all of one body: what newcomers' heads are combined from."""
        kept = {name: part for name, part in server.state.items() if not name.startswith(("phi.", "statistics."))}
        if self.collaboration:
            for i, up in replies.items():
                kept |= {f"phi.{i}": up["head"], f"statistics.{i}": up["statistics"]}
        server.state = kept

    def weights(self, replies: dict[int, Message]) -> Tensor:
        if not self.collaboration:
            return torch.eye(len(replies), dtype=torch.float64)
        statistics = [FeatureStatistics.from_tensors(up.weights("statistics")) for up in replies.values()]
        alpha = combination_weights(
            statistics, self.covariance, self.centre, self.ridge, self.cutoff, clients=list(replies)
        )
        return alpha if self.most_weight == 1 else bounded(alpha, self.most_weight)

    def peer_weights(self, server: Server) -> list[tuple[int, int, float]]:
        if "alpha" not in server.state:
            return []
        return [(int(i), int(j), weight) for i, j, weight in server.tensor("alpha").tolist()]

    def newcomer(self) -> Newcomer:
        if not self.collaboration:
            return super().newcomer()
        return Newcomer("the body and a head combined for it, as for a participant, from its statistics; no training")

    def welcome(self, server: Server, hello: Message | None = None) -> Message:
        if hello is None or not self.collaboration:
            return Message(w=server.weights("w"), head=server.state["head"])
        ids = [int(name.removeprefix("phi.")) for name in server.state if name.startswith("phi.")]
        if not ids:
            raise RunError(
                f"FedPAC combines a newcomer's head from the heads and statistics of the last round; after round "
                f"{server.round} there are none here; one more round brings them ('fedpac resume RUN --rounds "
                f"{server.round + 1}')"
            )
        known = [FeatureStatistics.from_tensors(server.weights(f"statistics.{i}")) for i in ids]
        own = FeatureStatistics.from_tensors(hello.weights("statistics"))
        alpha = newcomer_weights(known, own, self.covariance, self.centre, self.ridge, self.cutoff, clients=ids)
        used = {i: float(weight) for i, weight in zip(ids, alpha, strict=True) if weight}
        head = weighted_sum([server.weights(f"phi.{i}") for i in used], list(used.values()))
        return Message(w=server.weights("w"), head=head)

    def introduce(self, client: Client, down: Message) -> Message:
        if not self.collaboration:
            return Message()
        z = self.look(client, self.assemble(client, down), "head")
        return Message(statistics=self.statistics(client, z), n=client.n)

    def introduction(self, server: Server) -> Description:
        classes, d, whole = server.task.classes, server.task.features, self.covariance != "identity"
        scatter = TensorLike(torch.float64, (d, d) if whole else (), -HUGE if whole else 0.0, HUGE, moment=whole)
        counts, means = class_counts(classes, of="n"), class_means(classes, d, torch.float64)
        return {"statistics": {"counts": counts, "means": means, "scatter": scatter}, "n": SAMPLES}

    def arrival(self, client: Client, down: Message) -> nn.Module:
        return self.received(client, down) if self.collaboration else super().arrival(client, down)
