"""The scenarios, one small class each: the keys it heeds, their defaults, and how much of which class a client gets.

A new class is known to `fedpac run --scenario` and `fedpac data` by its name; keys that it does not heed are refused.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

import numpy as np

from fedpac.data.partition import (
    Floats,
    Ints,
    apportion,
    dirichlet_counts,
    dominant_sets,
    group_shares,
    pathological_shares,
)
from fedpac.data.published import Usual

if TYPE_CHECKING:
    from fedpac.data.config import DataConfig

T = TypeVar("T")
Shift = Literal["none", "labels", "rotation", "turns", "source"]
Stream = np.random.Generator
GROUPS = 5
MINIMUM = 10  # samples of a client, dirichlet and natural

SCENARIOS: dict[str, "Rule"] = {}


class Rule:
    """How a scenario deals samples out. The numbers are the paper's."""

    name: ClassVar[str]
    keys: ClassVar[frozenset[str]] = frozenset({"clients", "samples", "test_samples"})
    dealt: ClassVar[bool] = True  # from a pool; else clients are what they are in the user's own data
    grouped: ClassVar[bool] = False  # clients are alike within a group
    shift: ClassVar[Shift] = "none"
    clients: ClassVar[int] = 20
    samples: ClassVar[int | None] = None  # per client; None: what is usual with the data set
    participation: ClassVar[float] = 1.0  # share of clients in a round

    def __init_subclass__(cls) -> None:
        SCENARIOS[cls.name] = cls()

    def filled(self, config: "DataConfig", usual: Usual | None) -> dict[str, object]:
        """The keys it heeds with what the config says, or their defaults.

        usual: None while own data have not been read; what depends on them is left out then.
        """
        used: dict[str, object] = {"clients": config.clients or self.clients}
        if usual is not None:
            used["samples"] = config.samples or self.samples or usual.samples
            used["test_samples"] = config.test_samples or usual.test_samples
        return used

    def groups(self, config: "DataConfig", usual: Usual | None) -> int | None:
        """How many groups there are; client i is in group i modulo this. None: own data have to be read to know."""
        if usual is None:
            return len(config.dominant) if config.dominant else config.groups
        return len(dominant(config, usual))

    def counts(self, config: "DataConfig", available: Ints, stream: Stream) -> tuple[Ints, Ints]:
        """Training and test samples of each class (columns) for each client (rows); of a config that is filled in.

        available: how many training samples of each class there are
        """
        sizes = self.sizes(config, stream)
        shares = self.shares(config, available, stream)
        train = apportion(shares, sizes, stream)
        return train, apportion(shares, np.full(len(train), config.test_samples), stream)

    def sizes(self, config: "DataConfig", stream: Stream) -> Ints:
        return np.full(known(config.clients), config.samples)

    def shares(self, config: "DataConfig", available: Ints, stream: Stream) -> Floats:
        """Class shares (columns) of each client (rows)."""
        raise NotImplementedError


def known(value: T | None) -> T:
    """A key that the scenario heeds: it has been filled in."""
    assert value is not None
    return value


def dominant(config: "DataConfig", usual: Usual) -> Sequence[Sequence[int]]:
    """The classes that each group has most of."""
    if config.dominant is None and config.groups is None and usual.dominant is not None:
        return usual.dominant
    return config.dominant or dominant_sets(usual.classes, config.groups or min(GROUPS, usual.classes))


class Groups(Rule):
    """s percent of a client's samples are spread over all classes, the rest over its group's dominant ones."""

    name = "groups"
    keys = Rule.keys | {"s", "dominant"}
    grouped = True
    s: ClassVar[float] = 20.0

    def filled(self, config: "DataConfig", usual: Usual | None) -> dict[str, object]:
        used = super().filled(config, usual) | {"s": self.s if config.s is None else config.s}
        return used if usual is None else used | {"dominant": dominant(config, usual)}

    def shares(self, config: "DataConfig", available: Ints, stream: Stream) -> Floats:
        return group_shares(known(config.clients), len(available), known(config.dominant), known(config.s))


class Imbalanced(Groups):
    """Groups whose clients have different numbers of samples."""

    name = "imbalanced"
    keys = Groups.keys | {"sizes"}

    def filled(self, config: "DataConfig", usual: Usual | None) -> dict[str, object]:
        used = super().filled(config, usual)
        if usual is not None:
            middle = config.samples or self.samples or usual.samples
            used["sizes"] = config.sizes or (max(1, middle // 2), middle, 2 * middle)
        return used

    def sizes(self, config: "DataConfig", stream: Stream) -> Ints:
        return stream.choice(known(config.sizes), size=known(config.clients))


class Pathological(Rule):
    """A client has a few classes only; its group says how many."""

    name = "pathological"
    keys = Rule.keys | {"allocation", "classes_per_group"}
    grouped = True
    classes_per_group: ClassVar[tuple[int, ...]] = (3, 3, 5, 5, 8)

    def filled(self, config: "DataConfig", usual: Usual | None) -> dict[str, object]:
        used = super().filled(config, usual) | {"allocation": config.allocation or "random"}
        if usual is not None:
            fitting = tuple(min(number, usual.classes) for number in self.classes_per_group)
            used["classes_per_group"] = config.classes_per_group or fitting
        return used

    def groups(self, config: "DataConfig", usual: Usual | None) -> int:
        return len(config.classes_per_group or self.classes_per_group)

    def shares(self, config: "DataConfig", available: Ints, stream: Stream) -> Floats:
        per_group, clustered = known(config.classes_per_group), config.allocation == "clustered"
        return pathological_shares(known(config.clients), len(available), per_group, clustered, stream)


class Dirichlet(Rule):
    """A class is split among the clients in proportions from a Dirichlet distribution; sizes follow from that."""

    name = "dirichlet"
    keys = Rule.keys | {"beta", "min_samples"}
    clients = 100
    participation = 0.3

    def filled(self, config: "DataConfig", usual: Usual | None) -> dict[str, object]:
        used = super().filled(config, usual) | {"samples": config.samples}  # None deals out the whole training set
        return used | {"beta": config.beta or 1.0, "min_samples": config.min_samples or MINIMUM}

    def counts(self, config: "DataConfig", available: Ints, stream: Stream) -> tuple[Ints, Ints]:
        clients, totals = known(config.clients), available
        if config.samples:
            totals = apportion(available[None] / available.sum(), np.array([clients * config.samples]), stream)[0]
        train = dirichlet_counts(totals, clients, known(config.beta), known(config.min_samples), stream)
        shares = train / train.sum(axis=1, keepdims=True)
        return train, apportion(shares, np.full(clients, config.test_samples), stream)


class Iid(Rule):
    """Clients do not differ."""

    name = "iid"

    def shares(self, config: "DataConfig", available: Ints, stream: Stream) -> Floats:
        return np.tile(available / available.sum(), (known(config.clients), 1))


class Scarce(Groups):
    name = "scarce"
    clients = 1000
    samples = 50
    participation = 0.03


class ConceptShift(Groups):
    name = "concept-shift"
    shift = "labels"


class FeatureSkew(Groups):
    name = "feature-skew"
    shift = "rotation"
    s = 100.0  # nothing but the features differs


class RandomTurns(Groups):
    """The paper's feature skew in its likelier reading: each image has an angle of its own, up to its group's."""

    name = "random-turns"
    shift = "turns"


class CinicSep(Groups):
    name = "cinic-sep"
    shift = "source"


class Natural(Rule):
    """Clients are the owners of the user's own data."""

    name = "natural"
    keys = frozenset({"min_samples"})
    dealt = False

    def filled(self, config: "DataConfig", usual: Usual | None) -> dict[str, object]:
        return {"min_samples": config.min_samples or MINIMUM}

    def groups(self, config: "DataConfig", usual: Usual | None) -> int:
        return config.groups or GROUPS
