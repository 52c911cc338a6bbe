"""Server optimizers (Hsu et al., 2019; Reddi et al., ICLR 2021): the average is a direction, not yet the next model.

    d <- average - w                                                   what the clients of a round agree on
    momentum:  v <- b v + d                                            w <- w + lr v
    adam:      m <- b m + (1 - b) d    s <- c s + (1 - c) d^2          w <- w + lr m / (sqrt(s) + tau)
    yogi:      m <- b m + (1 - b) d    s <- s - (1 - c) d^2 sign(s - d^2)          the same step

s starts at tau^2, everything else at zero, as in the paper, without a correction of the bias. With `warmup`, b grows
from zero over that many rounds: the first steps are the longest, and momentum would repeat them. Momentum is linear in
what clients send, so it works on payloads that the server cannot read; adam and yogi square and divide, and do not.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from fedpac.errors import ConfigError
from fedpac.message import Payload, Weights
from fedpac.weights import weighted_sum

Kind: TypeAlias = Literal["momentum", "adam", "yogi"]
USUAL: Mapping[str, Mapping[str, float]] = {
    "momentum": {"lr": 1.0, "momentum": 0.5},
    "adam": {"lr": 0.01, "momentum": 0.9},
    "yogi": {"lr": 0.01, "momentum": 0.9},
}


class Optimizer(BaseModel):
    """How the server moves to the next model. It stores nothing: moments are handed in and given back."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = "momentum"
    lr: Annotated[float, Field(gt=0, le=100)] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5
    second: Annotated[float, Field(ge=0, lt=1)] = 0.99
    tau: Annotated[float, Field(gt=0, le=1)] = 1e-3
    warmup: Annotated[int, Field(ge=0)] = 0

    def at(self, round: int) -> "Optimizer":
        """As it is in that round, with as much of the momentum as there is by then."""
        share = min(1.0, (round - 1) / self.warmup) if self.warmup else 1.0
        return self.model_copy(update={"momentum": share * self.momentum})

    def step(
        self, old: Weights, average: Weights, moments: Mapping[str, Weights], averaged: Collection[str] = ()
    ) -> tuple[Weights, dict[str, Weights]]:
        """The next weights and moments. What `averaged` names, such as running statistics, just takes the average."""
        if isinstance(average, Payload):
            if self.kind != "momentum":
                raise ConfigError(
                    f"server.optimizer = '{self.kind}' squares updates, which this server cannot read: use "
                    "'momentum', which only needs sums, or 'none'"
                )
            if averaged:
                raise ConfigError(
                    "server.optimizer = 'momentum': the model has running statistics, which a server that cannot read "
                    f"its weights ({', '.join(sorted(averaged)[:2])}, ...) cannot leave alone; use 'none'"
                )
            return self._momentum(old, average, moments)
        apart = {name for name, t in average.items() if name in averaged or not t.is_floating_point()}
        moving = {name: t for name, t in average.items() if name not in apart}
        move = self._momentum if self.kind == "momentum" else self._adaptive
        w, moments = move({name: old[name] for name in moving}, moving, moments)
        return {name: average[name] if name in apart else w[name] for name in average}, moments

    def _momentum(
        self, old: Weights, average: Weights, moments: Mapping[str, Weights]
    ) -> tuple[Weights, dict[str, Weights]]:
        terms, shares = [average, old], [1.0, -1.0]
        if "velocity" in moments:
            terms, shares = [_same(moments["velocity"], average), *terms], [self.momentum, *shares]
        velocity = weighted_sum(terms, shares)
        return weighted_sum([old, velocity], [1.0, self.lr]), {"velocity": velocity}

    def _adaptive(
        self, old: Weights, average: Weights, moments: Mapping[str, Weights]
    ) -> tuple[Weights, dict[str, Weights]]:
        w: Weights = {}
        first: Weights = {}
        second: Weights = {}
        for name, mean in average.items():
            d = mean - old[name]
            square = d.square()
            m = moments["first"][name] if "first" in moments else d.new_zeros(())
            s = moments["second"][name] if "second" in moments else d.new_full((), self.tau**2)
            first[name] = self.momentum * m + (1 - self.momentum) * d
            if self.kind == "adam":
                second[name] = self.second * s + (1 - self.second) * square
            else:
                second[name] = s - (1 - self.second) * square * (s - square).sign()
            w[name] = old[name] + self.lr * first[name] / (second[name].sqrt() + self.tau)
        return w, {"first": first, "second": second}


def _same(moment: Weights, weights: Weights) -> Weights:
    """The moment of these weights alone: a method may stop to share a part of the model."""
    return moment if isinstance(moment, Payload) else {name: moment[name] for name in weights}
