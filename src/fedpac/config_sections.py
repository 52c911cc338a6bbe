"""The sections of a config that belong to no other module: run, wire, server and federation, with their keys."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedpac.engines import known_engine
from fedpac.errors import ConfigError, unknown
from fedpac.metrics import COUNTS, METRICS
from fedpac.mods import Float16, Mod, TopK
from fedpac.optimizers import USUAL, Optimizer
from fedpac.robust import Rule

SiteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]  # also the name of its key's file


class RunConfig(BaseModel):
    """How long, with whom and on what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: Annotated[int, Field(ge=1, le=1_000_000, description="communication rounds")] = 200
    seed: Annotated[int, Field(ge=0, lt=2**63, description="random seed of the run")] = 0
    participation: Annotated[
        float,
        Field(gt=0, le=1, description="share of clients that participate in a round; 1, dirichlet 0.3, scarce 0.03"),
    ] = 1.0
    evaluate_every: Annotated[
        int, Field(ge=1, description="rounds between evaluations; the last round is always evaluated")
    ] = 5
    personal_every: Annotated[
        int | None,
        Field(ge=0, description="the same for personal models; 0: never; defaults to evaluate_every"),
    ] = None
    evaluate_absentees: Annotated[
        bool, Field(description="also train clients that do not participate, just to score their personal models")
    ] = True
    evaluate_clients: Annotated[
        int | None, Field(ge=1, description="number of clients to evaluate, drawn anew each time; default: all")
    ] = None
    everybody_last: Annotated[bool, Field(description="all clients participate in the last round")] = True
    metrics: Annotated[
        tuple[str, ...],
        Field(description=f"metrics in addition to accuracy and loss: {', '.join([*METRICS, *COUNTS])}"),
    ] = ()
    select_by: Annotated[
        str | None, Field(description="the validation metric that selects the round; default: accuracy")
    ] = None
    patience: Annotated[
        int | None, Field(ge=1, description="stop after this many evaluations without improvement on validation data")
    ] = None
    ended: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...] | None,
        Field(description="former last rounds, before the run was extended; they still count as last rounds"),
    ] = None
    min_replies: Annotated[
        int | None,
        Field(ge=1, description="a round with fewer replies does not count; default: any failing client ends the run"),
    ] = None
    deadline: Annotated[float | None, Field(gt=0, description="seconds a client has to reply; default: no limit")] = (
        None
    )
    checkpoint_every: Annotated[int, Field(ge=1, description="rounds between checkpoints")] = 10
    engine: Annotated[str, Field(description="where clients are trained: auto, process, serial, ray, flower")] = "auto"
    device: Annotated[str, Field(description="device to train on: cpu, or any torch device such as cuda")] = "cpu"
    workers: Annotated[int | None, Field(ge=1, le=4096, description="worker processes; default: one per core")] = None

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in (known := [*METRICS, *COUNTS]):
                raise ValueError(unknown("metric", name, known))
        return names

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, name: str) -> str:
        try:
            return known_engine(name)
        except ConfigError as error:
            raise ValueError(str(error)) from None


def check_selection(run: RunConfig, validated: bool) -> None:
    """What is chosen by must be measured."""
    for key in ("select_by", "patience"):
        if getattr(run, key) is not None and not validated:
            raise ConfigError(f"config: run.{key} needs validation data: set data.validation_share, such as 0.2")
    measured = [*dict.fromkeys(("accuracy", "r2", "loss", *run.metrics))]
    if run.select_by is not None and run.select_by not in METRICS:
        raise ConfigError("config: run.select_by: " + unknown("metric", run.select_by, METRICS))
    if run.select_by is not None and run.select_by not in measured:
        raise ConfigError(f"config: run.select_by = '{run.select_by}' is not measured; add it to run.metrics")


class WireConfig(BaseModel):
    """What happens to messages on their way."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compression: Annotated[
        Literal["none", "float16", "top-k"],
        Field(description="float16: half precision both ways; top-k: clients send only their largest changes"),
    ] = "none"
    keep: Annotated[float, Field(gt=0, le=1, description="share of the changes that top-k keeps")] = 0.1

    def mods(self) -> tuple[Mod, ...]:
        return {"none": (), "float16": (Float16(),), "top-k": (TopK(self.keep),)}[self.compression]


class ServerConfig(BaseModel):
    """What the server does with averages. Learning rate and momentum default to what is usual for the optimizer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Annotated[
        Literal["none", "momentum", "adam", "yogi"],
        Field(description="server optimizer (FedOpt) applied to the average; none: take the average as it is"),
    ] = "none"
    aggregation: Annotated[
        Literal["mean", "median", "trimmed-mean", "krum", "clipped"],
        Field(description="how replies are aggregated; all but the mean tolerate some hostile clients"),
    ] = "mean"
    hostile: Annotated[
        float, Field(ge=0, lt=0.5, description="share of hostile clients that trimmed-mean and krum tolerate")
    ] = 0.2
    lr: Annotated[float | None, Field(gt=0, le=100, description="1 for momentum, 0.01 for adam and yogi")] = None
    momentum: Annotated[
        float | None, Field(ge=0, lt=1, description="0.5 for momentum, 0.9 (beta 1) for adam and yogi")
    ] = None
    second: Annotated[float, Field(ge=0, lt=1, description="beta 2 of adam and yogi")] = 0.99
    tau: Annotated[float, Field(gt=0, le=1, description="adam and yogi: added to the root of the second moment")] = 1e-3
    warmup: Annotated[int, Field(ge=0, description="rounds over which momentum grows from zero to its full size")] = 0

    def make_rule(self) -> Rule | None:
        return None if self.aggregation == "mean" else Rule(kind=self.aggregation, hostile=self.hostile)

    def make_optimizer(self) -> Optimizer | None:
        given = {"lr": self.lr, "momentum": self.momentum, "warmup": self.warmup or None}
        given = {key: value for key, value in given.items() if value is not None}
        if self.optimizer == "none":
            if given:
                raise ConfigError(f"server.{min(given)} needs a server.optimizer: momentum, adam or yogi")
            return None
        values = {**USUAL[self.optimizer], **given}
        return Optimizer(kind=self.optimizer, second=self.second, tau=self.tau, **values)


class FederationConfig(BaseModel):
    """Clients that are real sites: the server never sees their data, so what it must know of them is said here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sites: Annotated[tuple[SiteName, ...], Field(min_length=1, description="names of the sites; the first is client 0")]
    classes: Annotated[
        int, Field(ge=0, le=100_000, description="labels are 0 to classes - 1; 0 where numbers are predicted")
    ]
    shape: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(min_length=1, description="shape of one sample; images are [channels, height, width]"),
    ]
    validation_share: Annotated[
        float | None,
        Field(gt=0, lt=1, description="share of each site's training samples held out for validation; default: none"),
    ] = None

    joined: Annotated[
        dict[SiteName, Annotated[int, Field(ge=0)]] | None,
        Field(description="sites that joined later, and after which round"),
    ] = None
    newcomers: Annotated[
        tuple[SiteName, ...] | None,
        Field(description="sites that do not train and receive a model after the last round: 'fedpac join --newcomer'"),
    ] = None
    left: Annotated[
        tuple[SiteName, ...] | None,
        Field(description="sites that have left; their client numbers stay reserved"),
    ] = None

    @field_validator("sites")
    @classmethod
    def _different(cls, sites: tuple[str, ...]) -> tuple[str, ...]:
        if twice := next((name for name in sites if sites.count(name) > 1), None):
            raise ValueError(f"the site '{twice}' is there twice.")
        return sites

    def before(self, round: int) -> "FederationConfig":
        """The federation without those who came after this round."""
        came = self.joined or {}
        sites = tuple(site for site in self.sites if came.get(site, -1) < round)
        joined = {site: after for site, after in came.items() if site in sites} or None
        return self.model_copy(update={"sites": sites, "joined": joined})
