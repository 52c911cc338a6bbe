"""One validated experiment config: TOML in, TOML out. A wrong key or value names itself and what is allowed."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedpac.data.config import DataConfig
from fedpac.data.published import PUBLISHED
from fedpac.engines import known_engine
from fedpac.errors import ConfigError, unknown
from fedpac.hostile import HostileConfig
from fedpac.methods import Method, find_method, is_own, make_method
from fedpac.methods.base import check_aggregation, check_optimizer
from fedpac.metrics import COUNTS, METRICS, headline
from fedpac.mods import Ckks, Float16, Mod, TopK
from fedpac.mods.ckks_keys import KeySource
from fedpac.networks import NETWORKS, is_own_network
from fedpac.optimizers import USUAL, Optimizer
from fedpac.privacy import PrivacyConfig
from fedpac.recipe import Recipe
from fedpac.robust import Rule
from fedpac.selection import Selection
from fedpac.strict import checked, one_line_lists, shown

Keys = TypeVar("Keys", bound=BaseModel)
SiteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]  # also the name of its key's file

HOW = {"engine", "device", "workers", "deadline", "min_replies", "checkpoint_every"}  # of RunConfig
YOUNGER = {  # keys that came later, by section
    "data": {"target", "validation_share", "image_size", "image_fit", "image_colour"},
    "federation": {"joined", "validation_share"},
    "training": {
        "optimizer", "schedule", "warmup", "step_every", "step_factor", "clip", "class_weights", "label_smoothing",
    },
    "run": {
        "personal_every", "evaluate_absentees", "evaluate_clients", "everybody_last", "metrics", "select_by",
        "patience", "ended",
    },
    "privacy": {"secret_start"},
}  # fmt: skip
LONGEST_GUESS = 10_000  # rounds
LONGEST = 32_768  # characters: the time to parse TOML grows with the square of what a stranger writes


class NotTomlError(Exception):
    """Text that is not TOML, or not TOML that anybody means."""


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

    def make_rule(self) -> Rule | None:
        return None if self.aggregation == "mean" else Rule(kind=self.aggregation, hostile=self.hostile)

    def make_optimizer(self) -> Optimizer | None:
        given = {"lr": self.lr, "momentum": self.momentum}
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


class Config(BaseModel):
    """One run. `method` holds the method's name and its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")  # TOML has inf, too

    method: dict[str, Any] = Field(default_factory=lambda: {"name": "fedpac"})
    model: Annotated[
        str, Field(description=f"the network: {', '.join(NETWORKS)}, or your own 'package.module:function'")
    ] = "paper"
    data: DataConfig = DataConfig()
    training: Recipe = Recipe()
    run: RunConfig = RunConfig()
    wire: WireConfig = WireConfig()
    server: ServerConfig = ServerConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    hostile: HostileConfig = HostileConfig()
    federation: FederationConfig | None = None  # then `data` says nothing

    @field_validator("model")
    @classmethod
    def _known_network(cls, name: str) -> str:
        if not is_own_network(name) and name not in NETWORKS:
            raise ValueError(unknown("network", name, NETWORKS))
        return name

    def identity(self) -> dict[str, Any]:
        """All that a result depends on: not where it is computed, nor what is done about clients that fail.

        A key that is younger than a run counts only where it changes something, so that old runs go on.
        """
        values = self.model_dump(mode="json", exclude={"run": HOW})
        for name in ("wire", "server", "privacy", "hostile"):
            if getattr(self, name) == type(self).model_fields[name].default:
                del values[name]
        if self.federation is None:
            del values["federation"]
        else:
            for key in ("left", "newcomers"):  # who has left is as who does not answer, and who is new changes nothing
                del values["federation"][key]
        for name, younger in YOUNGER.items():
            if (section := getattr(self, name)) is None or name not in values:
                continue
            for key in younger:
                if getattr(section, key) == type(section).model_fields[key].default:
                    del values[name][key]
        method = find_method(self.method["name"])
        values["method"] = {
            key: value for key, value in values["method"].items()
            if key not in method.younger or value != method.younger[key]
        }  # fmt: skip
        return values

    def selection(self, classes: int) -> Selection | None:
        """How validation data choose the round; None where there are none."""
        if not self.validation_share:
            return None
        return Selection(self.run.select_by or headline(classes), self.run.patience)

    @property
    def validation_share(self) -> float | None:
        own = self.federation.validation_share if self.federation is not None else None
        return self.data.validation_share if own is None else own

    def extended(self, rounds: int, finished: bool) -> "Config":
        """The same run with more rounds. If it is finished, its last round is remembered where that made it another one
        than it would have been: evaluated out of turn, or with everybody in it."""
        run = self.run
        cadences = [run.evaluate_every, *([run.personal_every] if run.personal_every else [])]
        out_of_turn = any(run.rounds % every for every in cadences)
        special = finished and (out_of_turn or (run.everybody_last and run.participation < 1))
        ended = ((*(run.ended or ()), run.rounds) if special else run.ended) or None
        return self.model_copy(update={"run": run.model_copy(update={"rounds": rounds, "ended": ended})})

    @property
    def can_be_extended(self) -> bool:
        """Whether a round depends on nothing that is to come: a rate that falls to zero in the last round does."""
        return self.training.schedule != "cosine"

    def with_sites(self, add: Sequence[str], remove: Sequence[str], round: int) -> "Config":
        """The same federation after this round with other sites. A site that comes back has the number it had."""
        federation = self.federation
        assert federation is not None
        known, left = federation.sites, set(federation.left or ())
        if strangers := set(remove) - set(known):
            raise ConfigError(unknown("site", min(strangers), known))
        if there := set(add) & set(known) - left:
            raise ConfigError(f"site '{min(there)}' already takes part")
        new = [site for site in add if site not in known]
        joined = {**(federation.joined or {}), **dict.fromkeys(new, round)} or None
        gone = tuple(site for site in known if site in (left | set(remove)) - set(add)) or None
        if len(gone or ()) == len(known) + len(new):
            raise ConfigError("no site would be left")
        update = {"sites": (*known, *new), "joined": joined, "left": gone}
        return self.model_copy(update={"federation": federation.model_copy(update=update)})

    def earlier(self, round: int) -> "Iterator[Config]":
        """What the config may have been when this round was saved: before the run was extended, or sites joined. Up to
        its end, a run is the same however long it is meant to be."""
        came = self.federation is not None and round in (self.federation.joined or {}).values()
        federations = (
            [self.federation, self.federation.before(round)] if came and self.federation else [self.federation]
        )
        shorter = range(round, min(self.run.rounds, round + LONGEST_GUESS)) if self.can_be_extended else ()
        for rounds in (self.run.rounds, *shorter):
            ended = tuple(end for end in self.run.ended or () if end < rounds) or None
            run = self.run.model_copy(update={"rounds": rounds, "ended": ended})
            for federation in federations:
                yield self.model_copy(update={"run": run, "federation": federation})

    def make_method(self) -> Method:
        settings = dict(self.method)
        return make_method(settings.pop("name", "fedpac"), settings)

    def mods(self, clients: int, key: KeySource | None = None) -> tuple[Mod, ...]:
        """What stands between the method and the wire; `key` is a site's own, where weights are encrypted."""
        method = self.make_method()
        real = self.federation is not None or self.run.engine == "flower"
        protected = self.privacy.mods(method, clients, key, self.run, secret_noise=real)
        if self.privacy.encryption != "none" and (self.server.make_optimizer() or method.optimizer()):
            raise ConfigError(
                "privacy.encryption = 'ckks' needs server.optimizer = 'none': moments are multiplied every round, "
                "but a ciphertext can be multiplied only once"
            )
        if self.privacy.encryption != "none" and self.server.aggregation != "mean":
            raise ConfigError(
                f"server.aggregation = '{self.server.aggregation}' and privacy.encryption = 'ckks' exclude each "
                "other: a server that compares replies must be able to read them"
            )
        if self.privacy.encryption != "none" and self.wire.compression != "none":
            raise ConfigError(
                f"wire.compression = '{self.wire.compression}' and privacy.encryption = '{self.privacy.encryption}' "
                "cannot be combined: ciphertexts cannot be compressed"
            )
        encryption = [mod for mod in protected if isinstance(mod, Ckks)]  # liars do not clip, but they encrypt
        noise = [mod for mod in protected if not isinstance(mod, Ckks)]
        return (*noise, *self.hostile.mods(clients, self.run.seed), *encryption, *self.wire.mods())

    def to_toml(self) -> str:
        unsaid = {"data"} if self.federation is not None else set()
        return one_line_lists(tomli_w.dumps(self.model_dump(exclude_none=True, mode="json", exclude=unsaid)))


def make_config(values: dict[str, Any], *, import_own: bool = True) -> Config:
    """Validate nested values; unset keys default to the paper's settings for the data set and the scenario.

    Without `import_own`, a method from outside fedpac is not imported, and its settings are not checked.
    """
    values = {**values}
    if isinstance(values.get("method"), str):
        values["method"] = {"name": values["method"]}
    try:
        config = checked(Config, values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem) for problem in error.errors())) from None
    used = {"name": "fedpac", **config.method}
    if import_own or not is_own(used["name"]):  # its settings are checked now, and their defaults written out
        method = config.make_method()
        check_optimizer(method, config.server.make_optimizer())
        check_aggregation(method, config.server.make_rule())
        used = {"name": used["name"], **method.model_dump(exclude_none=True, mode="json")}
    published = PUBLISHED.get(config.data.dataset) if config.federation is None else None
    training = _filled(config.training, published.training if published else {})
    run = _filled(config.run, {"participation": config.data.rule.participation})
    check_selection(run, bool(config.validation_share))
    server = _filled(config.server, USUAL.get(config.server.optimizer, {}))
    filled = {"method": used, "data": config.data.resolved(), "training": training, "run": run, "server": server}
    return _at_sites(config.model_copy(update=filled))


def _at_sites(config: Config) -> Config:
    """Real sites are told nothing of the section `data`: what holds for theirs goes where they look."""
    if config.federation is None or config.data.validation_share is None:
        return config
    told = config.federation.model_copy(update={"validation_share": config.validation_share})
    return config.model_copy(
        update={"federation": told, "data": config.data.model_copy(update={"validation_share": None})}
    )


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


def _filled(section: Keys, usual: Mapping[str, Any]) -> Keys:
    """The section with the usual values for keys that were not given."""
    return section.model_copy(update={k: v for k, v in usual.items() if k not in section.model_fields_set})


def read_config(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST + 1)
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {path} cannot be read: {error}") from None
    return parse_toml(text, f"the config file {path}")


def parse_toml(text: str, what: str) -> dict[str, Any]:
    try:
        return _toml(text)
    except NotTomlError as error:
        raise ConfigError(f"{what} is not valid TOML: {error}") from None


def _toml(text: str) -> dict[str, Any]:
    if len(text) > LONGEST:
        raise NotTomlError(f"it has more than {LONGEST:,} characters, too long for a config")
    try:
        return tomllib.loads(text)
    except (RecursionError, ValueError) as error:  # the parser's own error, thousands of brackets or of digits
        raise NotTomlError(error) from None


def override(values: dict[str, Any], assignment: str) -> dict[str, Any]:
    """Values with one field changed: 'training.lr=0.05', 'method.lam=0'."""
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise ConfigError(f"'{assignment}' is not of the form section.key=value, such as training.lr=0.05")
    try:
        value = _toml(f"value = {text}")["value"]
    except NotTomlError:
        value = text  # a bare word is a string
    return changed(values, key, value)


def changed(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Values with the field 'section.key' set; what they were is left as it is."""
    result = {**values}
    at = result
    *sections, last = key.split(".")
    for name in sections:
        inner = at.get(name, {})
        if name == "method" and isinstance(inner, str):  # short for [method] name = ...
            inner = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"config: {name} = {shown(inner)}: expected a section with keys such as {key}")
        at[name] = {**inner}
        at = at[name]
    at[last] = value
    return result


def _explain(problem: Any) -> str:
    path = [str(part) for part in problem["loc"]]
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        section: type[BaseModel] = Config
        for part in path[:-1]:
            annotation = section.model_fields[part].annotation
            section = annotation if isinstance(annotation, type) else FederationConfig  # which may be left out
        return f"config: {key}: " + unknown("key", path[-1], section.model_fields)
    message = problem["msg"].removeprefix("Value error, ")
    return f"config: {key} = {shown(problem['input'])}: {message[0].lower() + message[1:]}"
