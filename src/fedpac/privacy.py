"""The section [privacy] of a config: who may read what, and what a result tells about one client."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Annotated, Any, Literal, Protocol, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedpac.errors import ConfigError
from fedpac.extras import library
from fedpac.methods import Method, list_methods
from fedpac.mods.base import Mod
from fedpac.mods.ckks import Ckks
from fedpac.mods.ckks_keys import KeySource, Parameters
from fedpac.mods.dp import Adder, Dp, noise_for
from fedpac.sampling import Uniform

KEY = "ckks.key"  # of a simulation, which plays all the sites: in the run's folder. No real server has one


class Planned(Protocol):
    """What of a run noise must be made for."""

    @property
    def rounds(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def participation(self) -> float: ...
    @property
    def everybody_last(self) -> bool: ...


class PrivacyConfig(BaseModel):
    """What the server can read, and what a result tells about one client."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    encryption: Annotated[
        Literal["none", "ckks"],
        Field(description="ckks: the server adds up weights that it cannot read (extra 'privacy')"),
    ] = "none"
    secret_start: Annotated[
        bool,
        Field(description="ckks: sites shuffle the initial weights by their key; not for pretrained networks"),
    ] = False
    noise: Annotated[
        float | None,
        Field(
            ge=0, le=1e6, description="z, noise relative to what one client can do; made for the budget if not given"
        ),
    ] = None
    clip: Annotated[
        float | None, Field(gt=0, le=1e6, description="C, the most by which one client may change the model (norm)")
    ] = None
    features: Annotated[float, Field(gt=0, le=1e6, description="F, the most that mean features may be (norm)")] = 10.0
    adaptive: Annotated[bool, Field(description="let clip follow the median of clients' changes")] = False
    delta: Annotated[float, Field(gt=0, lt=1, description="of (epsilon, delta); less than 1 / clients")] = 1e-3
    budget: Annotated[float | None, Field(gt=0, description="epsilon at which the run stops")] = None
    trust: Annotated[
        Literal["server", "nobody"],
        Field(description="server: it adds the noise; nobody: each client adds all that it needs itself"),
    ] = "server"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.protects and (self.clip is not None or self.adaptive):
            raise ValueError("privacy.clip and adaptive need noise or a budget: clipping alone hides nothing.")
        if self.secret_start and self.encryption == "none":
            raise ValueError("privacy.secret_start needs privacy.encryption = 'ckks', whose key the sites share.")
        if self.protects and self.clip is None:
            raise ValueError("differential privacy needs privacy.clip, the norm that a client's change is cut to.")
        return self

    @property
    def protects(self) -> bool:
        """Whether there is differential privacy."""
        return self.noise is not None or self.budget is not None

    def mods(
        self, method: Method, clients: int, key: KeySource | None, plan: Planned, secret_noise: bool = False
    ) -> tuple[Mod, ...]:
        """In the order in which they stand between the method and the wire.

        key            the secret that the sites share; None at a real server, and at a site that was given none
        secret_noise   noise that nobody can draw again, for real sites
        """
        mods: list[Mod] = []
        if self.protects:
            mods.append(self._dp(method, clients, plan, secret_noise))
        if self.encryption == "ckks":
            library("tenseal", "privacy")
            mods.append(Ckks(encryptable(method), Parameters.for_clients(clients), key, self.secret_start))
        return tuple(mods)

    def _dp(self, method: Method, clients: int, plan: Planned, secret_noise: bool) -> Dp:
        library("dp_accounting", "privacy")
        if not (kinds := method.protects()):
            able = ", ".join(name for name, kind in list_methods().items() if _protects(kind))
            raise ConfigError(
                f"method {method.name} cannot run with differential privacy: nobody has worked out what its replies "
                f"tell. Methods that can: {able}"
            )
        if self.delta >= 1 / clients:
            raise ConfigError(f"privacy.delta = {self.delta:g} must be less than 1 / clients = {1 / clients:g}")
        adder: Adder = "server" if self.encryption == "none" else "clients together"
        adder = "each client" if self.trust == "nobody" else adder
        made = Dp(
            kinds, self.noise or 1.0, cast(float, self.clip), self.features, self.delta, cohort(clients, plan), clients,
            adder, self.adaptive, self.budget, None if secret_noise else plan.seed,
        )  # fmt: skip
        if self.noise is not None:
            return made if self.noise else replace(made, noise=0.0)
        assert self.budget is not None
        releases = most_often(clients, plan) * made.cost  # with noise 1
        return replace(made, noise=noise_for(self.budget, self.delta, releases) if releases else 0.0)


def _protects(kind: type[Method]) -> bool:
    try:
        return bool(kind().protects())
    except ConfigError:
        return True  # with other settings


def cohort(clients: int, plan: Planned) -> int:
    """Clients in an ordinary round."""
    return max(1, min(clients, int(plan.participation * clients + 0.5)))


def most_often(clients: int, plan: Planned) -> int:
    """How many rounds the client that is chosen most often takes part in: the seed knows."""
    if plan.participation == 1:
        return plan.rounds
    sampler = Uniform(plan.participation, plan.everybody_last)
    task = SimpleNamespace(clients=clients, seed=plan.seed, is_last=lambda round: round >= plan.rounds)
    times = [0] * clients
    for round in range(1, plan.rounds + 1):
        for client in sampler.choose(cast(Any, task), round, range(clients)):
            times[client] += 1
    return max(times)


def statement(mods: tuple[Mod, ...], memory: dict[str, Any], stopped: str | None) -> dict[str, Any]:
    """What a summary says about privacy; nothing where there is none."""
    said: dict[str, Any] = {}
    for mod in mods:
        if isinstance(mod, Ckks):
            said["encryption"] = str(mod.parameters)
        elif isinstance(mod, Dp):
            epsilon = mod.epsilon(memory)
            said |= {
                "epsilon": epsilon if math.isfinite(epsilon) else None, "delta": mod.delta, "noise": mod.noise,
                "guarantee": mod.guarantee(), "stopped": stopped,
            }  # fmt: skip
    return {"privacy": said} if said else {}


def encryptable(method: Method) -> tuple[str, ...]:
    """The parts of the method's replies that can be encrypted; an error if there are none."""
    if (parts := method.sums()) and method.optimizer() is None:
        return parts
    able = ", ".join(name for name, kind in list_methods().items() if kind().sums() and kind().optimizer() is None)
    if method.encryptable_with:
        raise ConfigError(
            f"method {method.name} with privacy.encryption = 'ckks' needs {method.encryptable_with}: what is carried "
            "from round to round would be multiplied in each, but a ciphertext can be multiplied only once"
        )
    raise ConfigError(
        f"method {method.name} cannot run with privacy.encryption = 'ckks': its server does more with what clients "
        f"send than add it up, or they send nothing. Methods that can: {able}"
    )
