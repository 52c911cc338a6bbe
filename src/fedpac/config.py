"""One validated experiment config: values in, TOML out. A wrong key or value names itself and what is allowed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedpac.config_sections import FederationConfig, RunConfig, ServerConfig, WireConfig, check_selection
from fedpac.data.config import DataConfig
from fedpac.data.published import PUBLISHED
from fedpac.errors import ConfigError, unknown
from fedpac.hostile import HostileConfig
from fedpac.methods import Method, find_method, is_own, make_method
from fedpac.methods.base import check_aggregation, check_optimizer
from fedpac.metrics import headline
from fedpac.mods import Ckks, Mod
from fedpac.mods.ckks_keys import KeySource
from fedpac.networks import NETWORKS, is_own_network
from fedpac.optimizers import USUAL
from fedpac.privacy import PrivacyConfig
from fedpac.recipe import Recipe
from fedpac.selection import Selection
from fedpac.strict import checked, one_line_lists, shown

Keys = TypeVar("Keys", bound=BaseModel)

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
    "server": {"warmup"},
    "privacy": {"secret_start"},
}  # fmt: skip
LONGEST_GUESS = 10_000  # rounds


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


def _filled(section: Keys, usual: Mapping[str, Any]) -> Keys:
    """The section with the usual values for keys that were not given."""
    return section.model_copy(update={k: v for k, v in usual.items() if k not in section.model_fields_set})


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
