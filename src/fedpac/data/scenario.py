"""Data set + partition + shift = what every client holds: a pure function of the config and a seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self, cast

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor

from fedpac.data import datasets
from fedpac.data.clients import ClientData, Part, Pool, Scenario
from fedpac.data.own import from_arrays, from_folder, from_owners
from fedpac.data.partition import (
    Ints,
    apportion,
    deal,
    dirichlet_counts,
    dominant_sets,
    group_shares,
    pathological_shares,
)
from fedpac.data.shift import relabelling
from fedpac.errors import ConfigError, unknown
from fedpac.randomness import numpy_stream

__all__ = ["DataConfig", "Scenario", "build", "describe", "from_arrays", "from_folder", "from_owners"]

OWN = "own"  # the name of a data set that is the user's
CLASSES_PER_GROUP = (3, 3, 5, 5, 8)
MINIMUM = 10  # samples of a client, dirichlet and natural
TEST_SHARE = 0.2
MOST = 1_000_000_000  # samples dealt in all: 8 GB of indices
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Shift = Literal["none", "labels", "rotation", "source"]


@dataclass(frozen=True)
class Preset:
    """A scenario by name: how samples are dealt, what is shifted, and the paper's number of clients for it."""

    partition: str
    shift: Shift = "none"
    clients: int = 20
    samples: int | None = None


PRESETS = {
    "groups": Preset("groups"),
    "imbalanced": Preset("imbalanced"),
    "pathological": Preset("pathological"),
    "dirichlet": Preset("dirichlet", clients=100),
    "iid": Preset("iid"),
    "scarce": Preset("groups", clients=1000, samples=50),
    "concept-shift": Preset("groups", shift="labels"),
    "feature-skew": Preset("groups", shift="rotation"),
    "cinic-sep": Preset("groups", shift="source"),
    "natural": Preset("natural"),
}

# which partitions heed a key; a key that would be ignored is refused, so that nobody believes it did something
HEEDED: dict[str, set[str]] = {
    "clients": {"groups", "imbalanced", "pathological", "dirichlet", "iid"},
    "samples": {"groups", "imbalanced", "pathological", "dirichlet", "iid"},
    "test_samples": {"groups", "imbalanced", "pathological", "dirichlet", "iid"},
    "s": {"groups", "imbalanced"},
    "dominant": {"groups", "imbalanced"},
    "sizes": {"imbalanced"},
    "allocation": {"pathological"},
    "classes_per_group": {"pathological"},
    "beta": {"dirichlet"},
    "min_samples": {"dirichlet", "natural"},
    "path": {"natural"},
    "test_share": {"natural"},
}


class DataConfig(BaseModel):
    """Which data the clients hold. A key left out takes the paper's value for its data set and scenario."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str = Field("digits", description=f"{', '.join(datasets.RECIPES)}; or '{OWN}' for the data under `path`")
    scenario: str = Field("groups", description=f"how data differ between clients: {', '.join(PRESETS)}")
    shift: Shift | None = Field(
        None,
        description="on top of the partition: 'labels' permutes the labels of each group (concept shift), 'rotation' "
        "turns the images of each group (feature skew), 'source' gives the first half of the clients CINIC-10's images "
        "from CIFAR-10 and the second half those from ImageNet",
    )
    clients: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="number of clients; 20, in dirichlet 100, in scarce 1000"
    )
    samples: Count | None = Field(
        None,
        description="training samples per client; 600, emnist 1000, digits 50, scarce 50. imbalanced: the middle size. "
        "dirichlet: the mean, where left out the whole training set is dealt out",
    )
    test_samples: Count | None = Field(
        None,
        description="test samples per client, in the client's own class shares; cifar10 and cinic10 300, fashion-mnist "
        "and emnist 600, digits 40",
    )
    s: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="percent of a client's samples spread over all classes, the rest is dominant classes; 20"
    )
    dominant: Annotated[tuple[tuple[int, ...], ...], Field(min_length=1)] | None = Field(
        None, description="dominant classes of each group; client i is in group i mod their number"
    )
    groups: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="number of groups; 5 (emnist 3, and never more than there are classes)"
    )
    sizes: Annotated[tuple[Count, ...], Field(min_length=1)] | None = Field(
        None, description="imbalanced: sizes to draw from; half, once and twice `samples`, so 300, 600, 1200"
    )
    allocation: Literal["random", "clustered"] | None = Field(
        None, description="pathological: every client its own class set ('random', default), or one set per group"
    )
    classes_per_group: Annotated[tuple[Count, ...], Field(min_length=1)] | None = Field(
        None, description="pathological: number of classes of a client in each group; 3, 3, 5, 5, 8"
    )
    beta: Annotated[float, Field(ge=0.001, le=1e6)] | None = Field(
        None, description="dirichlet: concentration; small is uneven, large is alike; 1.0"
    )
    min_samples: Count | None = Field(
        None, description="dirichlet: the least a client holds; natural: owners with fewer are left out; 10"
    )
    path: Path | None = Field(None, description="natural: the folder or npz file of your own data")
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="natural: share of an owner's samples kept for testing, where the data are not split yet; 0.2"
    )
    angles: tuple[Annotated[float, Field(ge=-360, le=360)], ...] | None = Field(
        None, description="shift 'rotation': degrees for each group; evenly spaced over the full turn"
    )
    augment: bool | None = Field(None, description="random crops and flips in training; yes for cifar10 and cinic10")

    @model_validator(mode="before")
    @classmethod
    def _own_data(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("scenario") == "natural":
            return {"dataset": OWN} | given
        return given

    @field_validator("dataset")
    @classmethod
    def _known_dataset(cls, name: str) -> str:
        if name not in (known := [*datasets.RECIPES, OWN]):
            raise ValueError(unknown("data set", name, known))
        return name

    @field_validator("scenario")
    @classmethod
    def _known_scenario(cls, name: str) -> str:
        if name not in PRESETS:
            raise ValueError(unknown("scenario", name, PRESETS))
        return name

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        partition = PRESETS[self.scenario].partition
        for key, heeding in HEEDED.items():
            if getattr(self, key) is not None and partition not in heeding:
                users = sorted(name for name, preset in PRESETS.items() if preset.partition in heeding)
                raise ValueError(f"{key} means nothing in scenario '{self.scenario}'; it is for {', '.join(users)}.")
        if (self.dataset == OWN) != (partition == "natural"):
            raise ValueError(f"data set '{OWN}' and scenario 'natural' go together: set both, and `path`.")
        if partition == "natural" and self.path is None:
            raise ValueError("scenario 'natural' needs `path`: the folder or npz file of your own data.")
        if self.shift_used == "source" and self.dataset != "cinic10":
            raise ValueError(
                f"shift 'source' is for data set 'cinic10', whose images have a source; not '{self.dataset}'."
            )
        if self.dataset != OWN:
            self._check_classes(datasets.RECIPES[self.dataset].classes)
            each = max(self.samples or 1, self.test_samples or 1, *(self.sizes or (1,)))
            if (asked := each * (self.clients or PRESETS[self.scenario].clients)) > MOST:
                raise ValueError(f"clients times samples is {asked:,}; at most {MOST:,} indices are dealt.")
        self._check_groups(partition)
        return self

    def _check_groups(self, partition: str) -> None:
        grouped = partition in ("groups", "imbalanced", "pathological") or self.shift_used in ("labels", "rotation")
        if self.groups is not None and not grouped:
            raise ValueError(
                f"groups means nothing in scenario '{self.scenario}' without a shift of labels or rotation."
            )
        if self.groups not in (None, there := _groups(self)):
            raise ValueError(f"groups is {self.groups}, but the other keys make {there} groups.")
        if self.angles is not None and self.shift_used != "rotation":
            raise ValueError("angles means nothing without shift 'rotation'.")
        if self.angles is not None and len(self.angles) != there:
            raise ValueError(f"angles has {len(self.angles)} values, but there are {there} groups.")

    def _check_classes(self, classes: int) -> None:
        for favoured in self.dominant or ():
            if not favoured or len(set(favoured)) < len(favoured) or not set(favoured) <= set(range(classes)):
                raise ValueError(
                    f"dominant has {list(favoured)}; each set is one or more different classes of 0 to {classes - 1}."
                )
        if self.classes_per_group and (most := max(self.classes_per_group)) > classes:
            raise ValueError(
                f"classes_per_group has {most}; allowed are 1 to {classes}, the classes of '{self.dataset}'."
            )

    @property
    def shift_used(self) -> Shift:
        return PRESETS[self.scenario].shift if self.shift is None else self.shift

    def resolved(self) -> Self:
        """The same data with every value that is used written out; what stays None is not used here."""
        partition = PRESETS[self.scenario].partition
        shift, own = self.shift_used, self.dataset == OWN
        used: dict[str, object] = {"shift": shift, "augment": self.augment}
        if own:
            path = self.path and self.path.expanduser().absolute()  # so that the run can be resumed from elsewhere
            used |= {"path": path, "augment": bool(self.augment), "test_share": self.test_share or TEST_SHARE}
        else:
            recipe = datasets.recipe_of(self.dataset)
            used["augment"] = recipe.augment if self.augment is None else self.augment
            used["clients"] = self.clients or PRESETS[self.scenario].clients
            used["test_samples"] = self.test_samples or recipe.test_samples
            if partition != "dirichlet":  # where None deals out the whole training set
                used["samples"] = self.samples or PRESETS[self.scenario].samples or recipe.samples
            if partition in HEEDED["dominant"]:
                used |= {"s": 20.0 if self.s is None else self.s, "dominant": _dominant(self, recipe)}
            if partition == "imbalanced":
                used["sizes"] = self.sizes or _sizes(cast(int, used["samples"]))
            if partition == "pathological":
                used["allocation"] = self.allocation or "random"
                used["classes_per_group"] = self.classes_per_group or CLASSES_PER_GROUP
            if partition == "dirichlet":
                used["beta"] = self.beta or 1.0
        if partition in HEEDED["min_samples"]:
            used["min_samples"] = self.min_samples or MINIMUM
        if shift in ("labels", "rotation"):
            used["groups"] = _groups(self)
            if shift == "rotation":
                used["angles"] = self.angles or tuple(360 * g / _groups(self) for g in range(_groups(self)))
        return type(self).model_validate({**self.model_dump(), **used})


def build(config: DataConfig, seed: int, data_dir: Path | None = None) -> Scenario:
    """Every client's data. The same config and seed give the same data, on every machine."""
    scenario = _own(config, seed) if config.dataset == OWN else _dealt(config, seed, data_dir)
    if len(scenario.shape) != 3 and (config.augment or config.shift_used == "rotation"):
        raise ConfigError(f"augment and shift 'rotation' need images; these samples have shape {scenario.shape}.")
    return _shifted(scenario, config, seed)


def _dealt(config: DataConfig, seed: int, data_dir: Path | None) -> Scenario:
    recipe = datasets.recipe_of(config.dataset)
    data = datasets.load(config.dataset, data_dir)
    train_counts, test_counts = _counts(config, seed, recipe, data.train.y.numpy())
    sources = data.source if config.shift_used == "source" and data.source is not None else (None, None)
    train = _deal(data.train, train_counts, numpy_stream(seed, "deal train"), sources[0])
    test = _deal(data.test, test_counts, numpy_stream(seed, "deal test"), sources[1])
    grouped = PRESETS[config.scenario].partition in ("groups", "imbalanced", "pathological")
    groups = _groups(config)
    augment = recipe.augment if config.augment is None else config.augment
    clients = [
        ClientData(own_train, own_test, augment, i % groups if grouped else None, f"client {i}")
        for i, (own_train, own_test) in enumerate(zip(train, test, strict=True))
    ]
    return Scenario(clients, data.classes, recipe.shape, f"{config.dataset} {config.scenario}", data.note)


def _deal(pool: Pool, counts: Ints, stream: np.random.Generator, source: Tensor | None) -> list[Part]:
    """Every client's part; where there are sources, the first half of the clients draws from 0, the second from 1."""
    y = pool.y.numpy()
    if source is None:
        dealt = deal(y, counts, stream)
    else:
        half = (len(counts) + 1) // 2
        dealt = deal(y, counts[:half], stream, np.flatnonzero(source == 0))
        if half < len(counts):
            dealt += deal(y, counts[half:], stream, np.flatnonzero(source == 1), first=half)
    return [Part(pool, torch.from_numpy(index)) for index in dealt]


def _counts(config: DataConfig, seed: int, recipe: datasets.Recipe, y: Ints) -> tuple[Ints, Ints]:
    """Training and test samples of each class (columns) for each client (rows)."""
    preset, classes = PRESETS[config.scenario], recipe.classes
    stream = numpy_stream(seed, "partition")
    clients = config.clients or preset.clients
    samples = config.samples or preset.samples or recipe.samples
    frequency = np.bincount(y, minlength=classes)
    if preset.partition == "dirichlet":
        totals = frequency
        if config.samples:
            totals = apportion(frequency[None] / len(y), np.array([clients * samples]), stream)[0]
        train = dirichlet_counts(totals, clients, config.beta or 1.0, config.min_samples or MINIMUM, stream)
        shares = train / train.sum(axis=1, keepdims=True)
    else:
        sizes = np.full(clients, samples)
        if preset.partition == "imbalanced":
            sizes = stream.choice(config.sizes or _sizes(samples), size=clients)
        if preset.partition == "pathological":
            per_group = config.classes_per_group or CLASSES_PER_GROUP
            shares = pathological_shares(clients, classes, per_group, config.allocation == "clustered", stream)
        elif preset.partition == "iid":
            shares = np.tile(frequency / len(y), (clients, 1))
        else:
            s = 20 if config.s is None else config.s
            shares = group_shares(clients, classes, _dominant(config, recipe), s)
        train = apportion(shares, sizes, stream)
    return train, apportion(shares, np.full(clients, config.test_samples or recipe.test_samples), stream)


def _sizes(samples: int) -> tuple[int, ...]:
    return max(1, samples // 2), samples, 2 * samples


def _dominant(config: DataConfig, recipe: datasets.Recipe) -> Sequence[Sequence[int]]:
    if config.dominant is None and config.groups is None and recipe.dominant is not None:
        return recipe.dominant
    return config.dominant or dominant_sets(recipe.classes, config.groups or min(5, recipe.classes))


def _groups(config: DataConfig) -> int:
    """How many groups there are; client i is in group i modulo this."""
    if config.dataset == OWN:
        return config.groups or 5
    if PRESETS[config.scenario].partition == "pathological":
        return len(config.classes_per_group or CLASSES_PER_GROUP)
    return len(_dominant(config, datasets.recipe_of(config.dataset)))


def _shifted(scenario: Scenario, config: DataConfig, seed: int) -> Scenario:
    if config.shift_used not in ("labels", "rotation"):
        return scenario
    groups = _groups(config)
    relabel: list[Tensor | None] = [None] * groups
    angles = [0.0] * groups
    if config.shift_used == "labels":
        relabel = [relabelling(seed, g, scenario.classes) for g in range(groups)]
    else:
        angles = [360 * g / groups for g in range(groups)] if config.angles is None else list(config.angles)
    clients = []
    for i, client in enumerate(scenario.clients):
        g = i % groups
        train, test = (replace(part, relabel=relabel[g], rotate=angles[g]) for part in (client.train, client.test))
        clients.append(replace(client, train=train, test=test, group=g))
    return replace(scenario, clients=clients)


def _own(config: DataConfig, seed: int) -> Scenario:
    assert config.path is not None  # the config has been validated
    read = from_owners if config.path.suffix == ".npz" else from_folder
    scenario = read(config.path, seed, config.test_share or TEST_SHARE, config.min_samples or MINIMUM)
    return replace(scenario, clients=[replace(c, augment=bool(config.augment)) for c in scenario.clients])


def describe(scenario: Scenario, part: Literal["train", "test"] = "train") -> Tensor:
    """How many samples of each class (columns) each client (rows) holds."""
    return torch.stack([getattr(client, part).class_counts(scenario.classes) for client in scenario.clients])
