"""Averages that a few hostile clients cannot carry away: what a server may put in the place of the weighted mean.

    median         in every coordinate
    trimmed-mean   in every coordinate without the f largest and the f smallest (Yin et al., ICML 2018)
    krum           the mean of the m - f replies closest to their neighbours (Blanchard et al., NeurIPS 2017)
    clipped        the weighted mean of differences to the median, none longer than most (Karimireddy et al., ICML 2021)

f is the number of hostile clients that is reckoned with. Honest clients differ, too, and more so where each has data of
its own kind: every rule but the mean loses some of that.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from statistics import median
from typing import Annotated, Literal, TypeAlias

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedpac.errors import ConfigError
from fedpac.message import Payload, Weights

Kind: TypeAlias = Literal["median", "trimmed-mean", "krum", "clipped"]

BELIEVED = 3.0  # times the usual number of samples


class Rule(BaseModel):
    """How replies are averaged, and which share of them may be hostile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    hostile: Annotated[float, Field(ge=0, lt=0.5)] = 0.2

    def average(self, replies: Sequence[Weights], shares: Sequence[float]) -> Weights:
        """In place of sum_i share_i w_i. Median, trimmed mean and Krum's choice count every client the same."""
        check_readable(replies)
        if len(replies) < 3:
            raise ConfigError(
                f"server.aggregation = '{self.kind}' needs at least three replies to find outliers; "
                f"there are {len(replies)}"
            )
        shares = believed(shares)
        f = self.liars(len(replies))
        if self.kind == "krum":
            chosen = closest(distances(replies), f)
            total = sum(shares[i] for i in chosen)
            return _mean([replies[i] for i in chosen], [shares[i] / total for i in chosen])
        trimmed = f if self.kind == "trimmed-mean" else (len(replies) - 1) // 2
        centre = {name: _middle([w[name] for w in replies], trimmed) for name in replies[0]}
        return shortened(centre, replies, shares) if self.kind == "clipped" else centre

    def liars(self, replies: int) -> int:
        """How many of so many replies are reckoned to be hostile."""
        return min(math.ceil(self.hostile * replies), (replies - 1) // 2)


def believed(shares: Sequence[float]) -> list[float]:
    """Shares that add up to one, none above three times the usual: anybody can claim to have a million samples."""
    most = BELIEVED * median(shares)
    cut = [min(share, most) for share in shares]
    return [share / sum(cut) for share in cut]


_rule: ContextVar[Rule | None] = ContextVar("rule", default=None)


@contextmanager
def aggregating(rule: Rule | None) -> Iterator[None]:
    """Whatever a method averages inside is averaged by this rule."""
    token = _rule.set(rule)
    try:
        yield
    finally:
        _rule.reset(token)


def current() -> Rule | None:
    return _rule.get()


def near_others(replies: Sequence[Weights]) -> list[int]:
    """Whose replies lie among the others', as Krum chooses; all of them where nobody is suspected."""
    if (rule := current()) is None or len(replies) < 3:
        return list(range(len(replies)))
    check_readable(replies)
    return closest(distances(replies), rule.liars(len(replies)))


def check_readable(replies: Sequence[Weights]) -> None:
    if any(isinstance(reply, Payload) for reply in replies):
        raise ConfigError("server.aggregation must read the clients' updates, which this server cannot: use 'mean'")


def shortened(centre: Weights, replies: Sequence[Weights], shares: Sequence[float]) -> Weights:
    """centre + sum_i share_i d_i, with d_i = w_i - centre cut to the median of their lengths."""
    return nearer(centre, replies, replies, shares)


def nearer(centre: Weights, everybody: Sequence[Weights], used: Sequence[Weights], shares: Sequence[float]) -> Weights:
    """centre + sum_j share_j d_j over those used, with d_j cut to the median length of everybody's.

    So nobody moves the result by more than its share of what is usual, whatever it sends.
    """
    check_readable([centre, *everybody])
    floats = [name for name, tensor in centre.items() if tensor.is_floating_point()]

    def length(w: Weights) -> float:
        return math.sqrt(sum(float((w[name] - centre[name]).double().square().sum()) for name in floats))

    usual = median(others) if (others := [d for d in map(length, everybody) if d]) else 0.0
    lengths = map(length, used)
    cut = [share * min(1.0, usual / d) if d else 0.0 for share, d in zip(shares, lengths, strict=True)]
    return {
        name: sum((c * (w[name] - tensor) for c, w in zip(cut, used, strict=True) if c), tensor)
        if name in floats
        else tensor
        for name, tensor in centre.items()
    }


def distances(replies: Sequence[Weights]) -> Tensor:
    """Squared distances between replies (m, m), from one Gram matrix for each tensor."""
    m = len(replies)
    total = torch.zeros(m, m, dtype=torch.float64)
    for name, tensor in replies[0].items():
        if tensor.is_floating_point():
            rows = torch.stack([w[name].reshape(-1).double() for w in replies])
            rows = rows - rows.mean(0)
            gram = rows @ rows.T
            total += gram.diagonal()[:, None] + gram.diagonal()[None, :] - 2 * gram
    return total.clamp(min=0)


def closest(squares: Tensor, f: int) -> list[int]:
    """The m - f replies with the least sum of distances to their m - f - 2 nearest."""
    m = len(squares)
    nearest = squares.sort(dim=1).values[:, 1 : max(2, m - f - 1)]  # the first is the reply itself
    return sorted(nearest.sum(1).argsort(stable=True)[: m - f].tolist())


def _middle(tensors: Sequence[Tensor], trimmed: int) -> Tensor:
    """The mean without the `trimmed` largest and smallest values, coordinate by coordinate."""
    if not tensors[0].is_floating_point():
        return tensors[0].clone()
    ordered = torch.stack(list(tensors)).sort(dim=0).values
    return ordered[trimmed : len(tensors) - trimmed].mean(0)


def _mean(replies: Sequence[Weights], shares: Sequence[float]) -> Weights:
    return {
        name: sum((s * w[name] for s, w in zip(shares, replies, strict=True)), torch.zeros_like(tensor))
        if tensor.is_floating_point()
        else tensor.clone()
        for name, tensor in replies[0].items()
    }
