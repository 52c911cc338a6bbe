"""Data set + partition + shift = what every client holds: a pure function of the config and a seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor

from fedpac.data import datasets
from fedpac.data.clients import ClientData, Part, Pool, Scenario
from fedpac.data.datasets import Dataset, Usual
from fedpac.data.own import OWN, from_arrays, from_folder, from_owners, pooled
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

__all__ = ["DataConfig", "Scenario", "build", "describe", "from_arrays", "from_folder", "from_owners", "repeated"]

GROUPS = 5
GROUPED = ("groups", "imbalanced", "pathological")  # partitions whose clients are alike within a group
CLASSES_PER_GROUP = (3, 3, 5, 5, 8)
MINIMUM = 10  # samples of a client, dirichlet and natural
TEST_SHARE = 0.2
MOST = 1_000_000_000  # samples dealt in all: 8 GB of indices
Count = Annotated[int, Field(ge=1, le=10_000_000)]
T = TypeVar("T")
Shift = Literal["none", "labels", "rotation", "source"]


@dataclass(frozen=True)
class Preset:
    """A scenario by name: how samples are dealt, what is shifted, and the paper's numbers for it."""

    partition: str
    shift: Shift = "none"
    clients: int = 20
    samples: int | None = None
    participation: float = 1.0  # share of clients in a round
    s: float = 20.0  # percent of a client's samples that are spread over all classes


PRESETS = {
    "groups": Preset("groups"),
    "imbalanced": Preset("imbalanced"),
    "pathological": Preset("pathological"),
    "dirichlet": Preset("dirichlet", clients=100, participation=0.3),
    "iid": Preset("iid"),
    "scarce": Preset("groups", clients=1000, samples=50, participation=0.03),
    "concept-shift": Preset("groups", shift="labels"),
    "feature-skew": Preset("groups", shift="rotation", s=100.0),  # nothing but the features differs
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
        description="training samples per client; 600, emnist 1000, digits 50, scarce 50, own data an even share. "
        "imbalanced: the middle size. dirichlet: the mean, where left out the whole training set is dealt out",
    )
    test_samples: Count | None = Field(
        None,
        description="test samples per client, in the client's own class shares; cifar10 and cinic10 300, fashion-mnist "
        "and emnist 600, digits 40, own data an even share",
    )
    s: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None,
        description="percent of a client's samples spread over all classes, the rest is dominant classes; 20, "
        "feature-skew 100",
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
    path: Path | None = Field(
        None, description="the folder or npz file of your own data; in all scenarios but natural dealt out anew"
    )
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="own data: share of the samples kept for testing, where they are not split yet; 0.2"
    )
    angles: tuple[Annotated[float, Field(ge=-360, le=360)], ...] | None = Field(
        None, description="shift 'rotation': degrees for each group; evenly spaced over the full turn"
    )
    augment: bool | None = Field(None, description="random crops and flips in training; yes for cifar10 and cinic10")

    @model_validator(mode="before")
    @classmethod
    def _own_data(cls, given: object) -> object:
        if isinstance(given, dict) and (given.get("scenario") == "natural" or given.get("path") is not None):
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
        if self.dataset == OWN and self.path is None:
            raise ValueError(f"your own data (data set '{OWN}') need `path`: the folder or npz file they are in.")
        if self.dataset != OWN and self.path is not None:
            raise ValueError(f"path is for your own data, but the data set is '{self.dataset}': leave one of them out.")
        if self.dataset != OWN and self.test_share is not None:
            raise ValueError(f"test_share is for your own data; data set '{self.dataset}' is split already.")
        if self.dataset != OWN and partition == "natural":
            raise ValueError(f"scenario 'natural' is for your own data: leave '{self.dataset}' out and set `path`.")
        if self.shift_used == "source" and self.dataset != "cinic10":
            raise ValueError(
                f"shift 'source' is for data set 'cinic10', whose images have a source; not '{self.dataset}'."
            )
        each = max(self.samples or 1, self.test_samples or 1, *(self.sizes or (1,)))
        if (asked := each * (self.clients or PRESETS[self.scenario].clients)) > MOST:
            raise ValueError(f"clients times samples is {asked:,}; at most {MOST:,} indices are dealt.")
        self.check_against(datasets.RECIPES.get(self.dataset))
        return self

    def check_against(self, usual: Usual | None) -> None:
        """What the classes and groups have to agree with; of own data the classes are known once they are read."""
        if usual is not None:
            self._check_classes(usual.classes)
        partition, there = PRESETS[self.scenario].partition, _groups(self, usual)
        grouped = partition in GROUPED or self.shift_used in ("labels", "rotation")
        if self.groups is not None and not grouped:
            raise ValueError(
                f"groups means nothing in scenario '{self.scenario}' without a shift of labels or rotation."
            )
        if self.groups not in (None, there):
            raise ValueError(f"groups is {self.groups}, but the other keys make {there} groups.")
        if self.angles is not None and self.shift_used != "rotation":
            raise ValueError("angles means nothing without shift 'rotation'.")
        if self.angles is not None and there is not None and len(self.angles) != there:
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

    def resolved(self, usual: Usual | None = None) -> Self:
        """The same data with every value that is used written out; what stays None is not used here.

        usual: of own data, once they have been read. Before that, what depends on them stays None too.
        """
        usual = usual or datasets.RECIPES.get(self.dataset)
        preset, shift = PRESETS[self.scenario], self.shift_used
        partition = preset.partition
        used: dict[str, object] = {"shift": shift, "augment": self.augment}
        if self.augment is None:
            used["augment"] = usual is not None and usual.augment
        if self.dataset == OWN:
            used["path"] = self.path and self.path.expanduser().absolute()  # the run may be resumed from elsewhere
            used["test_share"] = self.test_share or TEST_SHARE
        if partition in HEEDED["min_samples"]:
            used["min_samples"] = self.min_samples or MINIMUM
        if partition in HEEDED["clients"]:
            used["clients"] = self.clients or preset.clients
        if partition in HEEDED["s"]:
            used["s"] = preset.s if self.s is None else self.s
        if partition == "pathological":
            used["allocation"] = self.allocation or "random"
            used["classes_per_group"] = self.classes_per_group or CLASSES_PER_GROUP
        if partition == "dirichlet":
            used["beta"] = self.beta or 1.0
        if usual is not None:
            used["test_samples"] = self.test_samples or usual.test_samples
            samples = self.samples or preset.samples or usual.samples
            if partition != "dirichlet":  # where None deals out the whole training set
                used["samples"] = samples
            if partition in HEEDED["sizes"]:
                used["sizes"] = self.sizes or (max(1, samples // 2), samples, 2 * samples)
            if partition in HEEDED["dominant"]:
                used["dominant"] = _dominant(self, usual)
        if shift in ("labels", "rotation") and (groups := _groups(self, usual)):
            used["groups"] = groups
            if shift == "rotation":
                used["angles"] = self.angles or tuple(360 * g / groups for g in range(groups))
        return type(self).model_validate({**self.model_dump(), **used})


def _dominant(config: DataConfig, usual: Usual) -> Sequence[Sequence[int]]:
    if config.dominant is None and config.groups is None and usual.dominant is not None:
        return usual.dominant
    return config.dominant or dominant_sets(usual.classes, config.groups or min(GROUPS, usual.classes))


def _groups(config: DataConfig, usual: Usual | None = None) -> int | None:
    """How many groups there are; client i is in group i modulo this. None: own data have to be read to know."""
    partition = PRESETS[config.scenario].partition
    if partition == "natural":
        return config.groups or GROUPS
    if partition == "pathological":
        return len(config.classes_per_group or CLASSES_PER_GROUP)
    if usual is None:
        return len(config.dominant) if config.dominant else config.groups
    return len(_dominant(config, usual))


# ---------------------------------------------------------------- building


def build(config: DataConfig, seed: int, data_dir: Path | None = None) -> Scenario:
    """Every client's data. The same config and seed give the same data, on every machine."""
    config = config.resolved()
    if PRESETS[config.scenario].partition == "natural":
        scenario = _natural(config, seed)
    elif config.dataset == OWN:
        data, config = _own(config, seed)
        scenario = _dealt(config, data, seed)
    else:
        scenario = _dealt(config, datasets.load(config.dataset, data_dir), seed)
    if len(scenario.shape) != 3 and (config.augment or config.shift == "rotation"):
        raise ConfigError(f"augment and shift 'rotation' need images; these samples have shape {scenario.shape}.")
    return _shifted(scenario, config, seed)


# ---------------------------------------------------------------- from resolved configs


def _known(value: T | None) -> T:
    """A key that the scenario heeds: resolved() has written it out."""
    assert value is not None
    return value


def _natural(config: DataConfig, seed: int) -> Scenario:
    path = _known(config.path)
    read = from_owners if path.suffix == ".npz" else from_folder
    scenario = read(path, seed, _known(config.test_share), _known(config.min_samples))
    return replace(scenario, clients=[replace(c, augment=bool(config.augment)) for c in scenario.clients])


def _own(config: DataConfig, seed: int) -> tuple[Dataset, DataConfig]:
    """The user's samples in a pool, and the config with all that had to wait for them."""
    data = pooled(_known(config.path), seed, _known(config.test_share))
    samples, test_samples = (max(1, len(pool.y) // _known(config.clients)) for pool in (data.train, data.test))
    usual = Usual(classes=data.classes, samples=samples, test_samples=test_samples)
    try:
        config.check_against(usual)
    except ValueError as error:
        raise ConfigError(f"config: data: {error}") from None
    return data, config.resolved(usual)


def _dealt(config: DataConfig, data: Dataset, seed: int) -> Scenario:
    train_counts, test_counts = _counts(config, seed, data.classes, data.train.y.numpy())
    sources = data.source if config.shift == "source" and data.source is not None else (None, None)
    train = _deal(data.train, train_counts, numpy_stream(seed, "deal train"), "training samples", sources[0])
    test = _deal(data.test, test_counts, numpy_stream(seed, "deal test"), "test samples", sources[1])
    groups = _groups(config) if PRESETS[config.scenario].partition in GROUPED else None
    clients = [
        ClientData(own_train, own_test, bool(config.augment), i % groups if groups else None, f"client {i}")
        for i, (own_train, own_test) in enumerate(zip(train, test, strict=True))
    ]
    shape = tuple(data.train.x.shape[1:])
    return Scenario(clients, data.classes, shape, f"{config.dataset} {config.scenario}", data.note)


def _deal(pool: Pool, counts: Ints, stream: np.random.Generator, what: str, source: Tensor | None) -> list[Part]:
    """Every client's part; where there are sources, the first half of the clients draws from 0, the second from 1."""
    y = pool.y.numpy()
    if source is None:
        dealt = deal(y, counts, stream, what)
    else:
        half = (len(counts) + 1) // 2
        dealt = deal(y, counts[:half], stream, what, np.flatnonzero(source == 0))
        if half < len(counts):
            dealt += deal(y, counts[half:], stream, what, np.flatnonzero(source == 1), first=half)
    return [Part(pool, torch.from_numpy(index)) for index in dealt]


def _counts(config: DataConfig, seed: int, classes: int, y: Ints) -> tuple[Ints, Ints]:
    """Training and test samples of each class (columns) for each client (rows)."""
    partition, clients = PRESETS[config.scenario].partition, _known(config.clients)
    stream = numpy_stream(seed, "partition")
    frequency = np.bincount(y, minlength=classes)
    if partition == "dirichlet":
        totals = frequency
        if config.samples:
            totals = apportion(frequency[None] / len(y), np.array([clients * config.samples]), stream)[0]
        train = dirichlet_counts(totals, clients, _known(config.beta), _known(config.min_samples), stream)
        shares = train / train.sum(axis=1, keepdims=True)
    else:
        sizes = stream.choice(config.sizes, size=clients) if config.sizes else np.full(clients, config.samples)
        if partition == "pathological":
            per_group, clustered = _known(config.classes_per_group), config.allocation == "clustered"
            shares = pathological_shares(clients, classes, per_group, clustered, stream)
        elif partition == "iid":
            shares = np.tile(frequency / len(y), (clients, 1))
        else:
            shares = group_shares(clients, classes, _known(config.dominant), _known(config.s))
        train = apportion(shares, sizes, stream)
    return train, apportion(shares, np.full(clients, config.test_samples), stream)


def _shifted(scenario: Scenario, config: DataConfig, seed: int) -> Scenario:
    if config.shift not in ("labels", "rotation"):
        return scenario
    groups = _known(config.groups)
    relabel = [relabelling(seed, g, scenario.classes) if config.shift == "labels" else None for g in range(groups)]
    angles = config.angles or (0.0,) * groups
    clients = []
    for i, client in enumerate(scenario.clients):
        g = i % groups
        train, test = (replace(part, relabel=relabel[g], rotate=angles[g]) for part in (client.train, client.test))
        clients.append(replace(client, train=train, test=test, group=g))
    return replace(scenario, clients=clients)


def describe(scenario: Scenario, part: Literal["train", "test"] = "train") -> Tensor:
    """How many samples of each class (columns) each client (rows) holds."""
    return torch.stack([getattr(client, part).class_counts(scenario.classes) for client in scenario.clients])


def repeated(scenario: Scenario) -> tuple[int, int]:
    """How many clients hold a training sample more than once, and how many samples several clients hold."""
    distinct = [np.unique(client.train.index.numpy()) for client in scenario.clients]
    holders = np.bincount(np.concatenate(distinct))
    clients = sum(len(own) < len(client.train) for own, client in zip(distinct, scenario.clients, strict=True))
    return clients, int((holders > 1).sum())
