"""Differential privacy for whole clients: what one client sends is cut to a length, and noise hides the rest.

    client:  d_i <- change of the model, cut to norm C              h_i, p_i, V_i cut to norms F, 1, F^2
    noise:   an average gets N(0, (z C / m)^2), as m shares;        what the server uses one by one gets N(0, (z C)^2)

Neighbours are two federations that differ in one client, who learned nothing in one of them. Each release is a
Gaussian mechanism, and Gaussian mechanisms compose to one: 1/z^2 add up. Nothing is counted for a random choice of
clients, since the seed that chooses them is known.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from fedpac.collaboration.statistics import FeatureStatistics
from fedpac.errors import MessageError
from fedpac.extras import library
from fedpac.message import Message, Part, Weights
from fedpac.mods.base import Context, Mod, Way
from fedpac.randomness import torch_stream

Kind: TypeAlias = Literal["average", "centroids", "each", "kept", "statistics", "public", "empty"]
Adder: TypeAlias = Literal["server", "clients together", "each client"]
Draw: TypeAlias = Callable[[tuple[int, ...]], Tensor]  # standard normal numbers of this shape
SPENT, CLIP, VOTES = "dp spent", "dp clip", "dp votes"  # what the server remembers
VOTE = "dp vote"  # in a reply: whether the client's change was short enough
CALM = 10.0  # times more noise on votes than on models: their average is over one number each
PACE, QUANTILE = 0.2, 0.5  # of adaptive clipping (Andrew et al., NeurIPS 2021)
AVERAGED, FREE = ("average", "centroids"), ("kept", "public", "empty")
DROWNED = 2.0  # a class whose share is less than so many deviations of its noise counts as absent


@dataclass(frozen=True)
class Dp(Mod):
    """Clips and adds noise to what a method says its replies are.

    kinds    average      change of the model, of which the server takes one average over all replies
             each         change of the model, which reaches others by itself or in sums of its own
             centroids    class means times class shares, and the shares: averaged
             statistics   class means, counts and variance, which the server uses one by one
             kept         what only its own client gets back: noise hides it only from a server nobody trusts
             public       not protected: numbers of samples         empty        nothing is there
    adder    who adds the noise: a trusted server; clients, a share each, to sums that the server cannot read; or each
             client as much as it needs by itself
    cohort   clients in a round, as planned; how many there were is counted afterwards
    seed     of the noise; None: from the operating system, as it must be where there is something to hide
    """

    kinds: Mapping[str, Kind]
    noise: float
    clip: float
    features: float
    delta: float
    cohort: int
    clients: int
    adder: Adder = "server"
    adaptive: bool = False
    budget: float | None = None
    seed: int | None = field(default=None, repr=False)

    # --- at the two ends ------------------------------------------------------------------------------------------

    def at_server(self, message: Message, context: Context) -> Way:
        clip = {CLIP: self._clip(context.state)} if self.adaptive else {}
        answer = yield Message(**{**message, **clip})
        parts = dict(answer)
        if self.adaptive:
            self._count(answer.number(VOTE), context)
            del parts[VOTE]
        if self.adder == "server":
            parts = self._noised(parts, self._clip(context.state), context, "at the server")
        return Message(**parts)

    def at_client(self, message: Message, context: Context) -> Way:
        given = {name: part for name, part in message.items() if name != CLIP}
        clip = min(message.number(CLIP), self.clip * 1e3) if self.adaptive else self.clip
        for name in given.keys() & {name for name, kind in self.treated.items() if kind == "centroids"}:
            given[name] = without_drowned(cast(Weights, given[name]), self._share * self.noise / math.sqrt(self.cohort))
        answer = yield Message(**given)
        if unknown := sorted(answer.keys() - self.kinds.keys()):
            raise MessageError(f"the reply has '{unknown[0]}', which differential privacy does not cover")
        parts: dict[str, Part] = {}
        longest = 0.0
        for name, part in answer.items():
            kind = self.treated[name]
            if kind in ("average", "each"):
                parts[name], length = cut_change(cast(Weights, given[name]), cast(Weights, part), clip)
                longest = max(longest, length)
            elif kind == "centroids":
                parts[name] = cut_centroids(cast(Weights, part), self.features)
            elif kind == "statistics":
                parts[name] = cut_statistics(cast(Weights, part), self.features)
            elif kind == "empty" and part != {}:
                raise MessageError(f"the reply has something in '{name}', which should be empty")
            else:
                parts[name] = part
        if self.adaptive:
            parts[VOTE] = float(longest <= clip)
        if self.adder != "server":
            parts = self._noised(parts, clip, context, "at the client")
            if self.adaptive:  # nobody encrypts it, so that it needs all of its noise
                parts[VOTE] = cast(float, parts[VOTE]) + self._noise_of_vote(context)
        return Message(**parts)

    @property
    def treated(self) -> dict[str, Kind]:
        """A server that nobody trusts sees what only its client gets back, so it is treated like the rest."""
        exposed = self.adder == "each client"
        return {name: "each" if kind == "kept" and exposed else kind for name, kind in self.kinds.items()}

    @property
    def _share(self) -> float:
        """Of an average's noise that each reply carries."""
        return 1.0 if self.adder == "each client" else 1 / math.sqrt(self.cohort)

    def _noised(self, parts: Mapping[str, Part], clip: float, context: Context, where: str) -> dict[str, Part]:
        noised = dict(parts)
        for name, kind in [(name, kind) for name, kind in self.treated.items() if name in parts]:
            draw = self._draw(f"dp {name} {where}", context)
            part = cast(Weights, parts[name])
            if kind == "average":
                noised[name] = with_noise(part, self._share * self.noise * clip, draw)
            elif kind == "each":
                noised[name] = with_noise(part, self.noise * clip, draw)
            elif kind == "centroids":
                noised[name] = noisy_centroids(part, self._share * self.noise, self.features, draw)
            elif kind == "statistics":
                noised[name] = noisy_statistics(part, self.noise, self.features, draw)
        return noised

    def _draw(self, purpose: str, context: Context) -> Draw:
        return (
            secret_normal
            if self.seed is None
            else drawn_from(torch_stream(self.seed, purpose, context.client, context.round))
        )

    # --- what was spent -------------------------------------------------------------------------------------------

    @property
    def released(self) -> int:
        """How many Gaussian mechanisms one client takes part in when it takes part in a round."""
        return sum(kind not in FREE for kind in self.treated.values())

    @property
    def cost(self) -> float:
        """1/z^2 of one round for one client, where all goes as planned."""
        votes = 1 / CALM**2 if self.adaptive and self.released else 0.0
        if not self.noise:
            return math.inf if self.released else 0.0
        return (self.released + votes) / self.noise**2

    def merged(self, samples: Mapping[int, float], memory: dict[str, Part]) -> None:
        """Counts a round: an average hides a client behind the noise of all who were there, by its share of it."""
        spent = self._spent(memory).clone()
        total = sum(samples.values())
        shares = {i: n / total for i, n in samples.items()}
        together = math.sqrt(sum(share**2 for share in shares.values()) / self.cohort)
        for i, share in shares.items():
            spent[i] += self._cost_of(share, together)
        memory[SPENT] = spent
        if self.adaptive:
            self._adapt(memory)

    def _cost_of(self, share: float, together: float) -> float:
        averaged = sum(kind in AVERAGED for kind in self.kinds.values())
        alone = self.released - averaged
        if not self.released:
            return 0.0
        if not self.noise:
            return math.inf
        if self.adder == "each client":
            return self.cost
        votes = 1 / CALM**2 if self.adaptive else 0.0
        return (alone + votes + averaged * (share / together) ** 2) / self.noise**2

    def _spent(self, memory: Mapping[str, Part]) -> Tensor:
        return cast(Tensor, memory.get(SPENT, torch.zeros(self.clients, dtype=torch.float64)))

    def epsilon(self, memory: Mapping[str, Part], further: float = 0.0) -> float:
        """Of the client that has lost most, after another `further` times 1/z^2."""
        return epsilon_of(float(self._spent(memory).max()) + further, self.delta)

    def stops(self, memory: Mapping[str, Part]) -> str | None:
        """Why there cannot be another round, if there cannot."""
        if self.budget is None or self.epsilon(memory, self.cost) <= self.budget * (1 + 1e-6):
            return None
        return f"another round would spend more than privacy.budget = {self.budget:g}"

    @property
    def promise(self) -> str:
        """What epsilon means here, in a few words for every round; `guarantee` has the whole."""
        where = {"server": "central", "clients together": "distributed", "each client": "local"}[self.adder]
        return f"delta {self.delta:g}, {where}, per client"

    def guarantee(self) -> str:
        """What epsilon means here; it is shown wherever epsilon is."""
        against = {
            "server": "central: against everybody but the server, which adds the noise and is trusted",
            "clients together": "distributed: against everybody, if the server cannot read single replies and nearly "
            "all clients keep their share of the noise to themselves",
            "each client": "local: against everybody, the server too",
        }[self.adder]
        return (
            f"differential privacy per client (all its data at once), {against}; no amplification by sampling is "
            "assumed; numbers of samples and measured accuracies are not covered"
            + ("" if self.seed is None else "; noise from the run's seed, which is for simulations only")
        )

    # --- adaptive clipping ----------------------------------------------------------------------------------------

    def _clip(self, memory: Mapping[str, Part]) -> float:
        return float(cast(float, memory.get(CLIP, self.clip)))

    def _count(self, vote: float, context: Context) -> None:
        if self.adder == "server":
            if vote not in (0.0, 1.0):
                raise MessageError(f"'{VOTE}' is {vote:g}, neither 0 nor 1")
            vote += self._noise_of_vote(context) / math.sqrt(self.cohort)
        votes = cast(Tensor, context.state.get(VOTES, torch.zeros(2, dtype=torch.float64)))
        context.state[VOTES] = votes + torch.tensor([vote - 0.5, 1.0], dtype=torch.float64)

    def _noise_of_vote(self, context: Context) -> float:
        return 0.5 * CALM * self.noise * float(self._draw("dp vote", context)(()))

    def _adapt(self, memory: dict[str, Part]) -> None:
        hidden, voters = cast(Tensor, memory.pop(VOTES, torch.zeros(2))).tolist()
        short = min(1.0, max(0.0, 0.5 + hidden / voters)) if voters else QUANTILE
        memory[CLIP] = self._clip(memory) * math.exp(-PACE * (short - QUANTILE))


# --- numbers ------------------------------------------------------------------------------------------------------


def epsilon_of(spent: float, delta: float) -> float:
    """Epsilon of Gaussian mechanisms whose 1/z^2 add up to `spent`: exact, by Balle and Wang (ICML 2018)."""
    if spent == 0:
        return 0.0
    if not math.isfinite(spent):
        return math.inf
    return float(library("dp_accounting", "privacy").get_epsilon_gaussian(1 / math.sqrt(spent), delta))


def noise_for(budget: float, delta: float, releases: float) -> float:
    """The noise multiplier with which so many releases spend exactly the budget."""
    total = float(library("dp_accounting", "privacy").get_sigma_gaussian(budget, delta))
    return total * math.sqrt(releases) * (1 + 1e-9)


def length_of(weights: Weights) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in weights.values() if t.is_floating_point()))


def cut_change(before: Weights, after: Weights, clip: float) -> tuple[Weights, float]:
    """before + (after - before), its length cut to `clip`; and how long it was. Whole numbers stay as they were."""
    change = {name: t - before[name] for name, t in after.items() if t.is_floating_point()}
    length = length_of(change)
    factor = min(1.0, clip / length) if length else 1.0
    return {name: t + factor * change[name] if name in change else t for name, t in before.items()}, length


def drawn_from(stream: torch.Generator) -> Draw:
    """Noise that can be drawn again."""
    return lambda shape: torch.randn(shape, generator=stream, dtype=torch.float64)


def secret_normal(shape: tuple[int, ...]) -> Tensor:
    """Noise from the operating system, by Box and Muller. A seeded generator will not do: torch's has 2^32 seeds, and
    whoever tries them all finds the one that leaves a short vector."""
    count = math.prod(shape)
    random = np.frombuffer(os.urandom(16 * ((count + 1) // 2)), dtype=np.uint64).reshape(2, -1)
    radius, turn = ((random >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius = np.sqrt(-2 * np.log(radius))
    both = np.concatenate([radius * np.cos(2 * np.pi * turn), radius * np.sin(2 * np.pi * turn)])
    return torch.from_numpy(both[:count].reshape(shape))


def with_noise(weights: Weights, deviation: float, draw: Draw) -> Weights:
    return {
        name: t + deviation * draw(tuple(t.shape)).to(t.dtype) if t.is_floating_point() else t
        for name, t in sorted(weights.items())
    }


def cut_centroids(tensors: Weights, most: float) -> Weights:
    """Sums of at most F, and shares, whose norm is at most 1 in any case."""
    length = float(tensors["sums"].double().norm())
    return {**tensors, "sums": tensors["sums"] * (min(1.0, most / length) if length else 1.0)}


def noisy_centroids(tensors: Weights, noise: float, most: float, draw: Draw) -> Weights:
    """sums / F and shares as one vector of norm up to sqrt(2) with noise."""
    deviation = noise * math.sqrt(2)
    sums, shares = (
        with_noise({name: tensors[name]}, of * deviation, draw) for name, of in (("sums", most), ("shares", 1.0))
    )
    return {**sums, **shares}


def without_drowned(tensors: Weights, noise: float) -> Weights:
    """The averages again, without the shares of classes that noise may have made up."""
    shares = tensors["shares"]
    return {**tensors, "shares": torch.where(shares > DROWNED * math.sqrt(2) * noise, shares, 0.0)}


def cut_statistics(tensors: Weights, most: float) -> Weights:
    """Class means such that |h| is at most F, and a variance of at most F^2."""
    own = FeatureStatistics.from_tensors(tensors)
    length = float(own.h.norm())
    means = own.means * (min(1.0, most / length) if length else 1.0)
    p = own.p
    room = max(0.0, most**2 - float((p * (1 - p)) @ means.square().sum(1)))
    return {"counts": tensors["counts"], "means": means, "scatter": own.scatter.clamp(max=room)}


def noisy_statistics(tensors: Weights, noise: float, most: float, draw: Draw) -> Weights:
    """h / F, p and V / F^2 as one vector of norm up to sqrt(3) with noise, and statistics that fit what came out."""
    own = FeatureStatistics.from_tensors(tensors)
    deviation = noise * math.sqrt(3)

    def drawn(*shape: int) -> Tensor:
        return deviation * draw(shape)

    h = own.h + most * drawn(*own.h.shape)
    counts = whole_shares(own.p + drawn(len(own.p)), int(own.n))
    p = counts.double() / own.n
    means = torch.where(p.unsqueeze(1) > 0, h / p.clamp(min=1 / own.n).unsqueeze(1), 0.0)
    V = own.V + most**2 * float(drawn(1))
    scatter = torch.tensor(max(0.0, V - float((p * (1 - p)) @ means.square().sum(1))), dtype=torch.float64)
    return {"counts": counts, "means": means, "scatter": scatter}


def whole_shares(shares: Tensor, n: int) -> Tensor:
    """Whole numbers that add up to n, as near to the shares as can be; negative shares are none."""
    kept = shares.clamp(min=0)
    kept = kept / kept.sum() if float(kept.sum()) > 0 else torch.full_like(shares, 1 / len(shares))
    exact = kept * n
    counts = exact.floor().long()
    largest = (exact - counts).argsort(descending=True, stable=True)[: n - int(counts.sum())]
    counts[largest] += 1
    return counts
