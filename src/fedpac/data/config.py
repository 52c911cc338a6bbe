"""Which data, dealt out how: the scenarios by name, and the config section that chooses among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedpac.data import datasets
from fedpac.data.datasets import Usual
from fedpac.data.own import OWN
from fedpac.data.partition import dominant_sets
from fedpac.errors import unknown

GROUPS = 5
GROUPED = ("groups", "imbalanced", "pathological")  # partitions whose clients are alike within a group
CLASSES_PER_GROUP = (3, 3, 5, 5, 8)
MINIMUM = 10  # samples of a client, dirichlet and natural
TEST_SHARE = 0.2
MOST = 1_000_000_000  # samples dealt in all: 8 GB of indices
Count = Annotated[int, Field(ge=1, le=10_000_000)]
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
        if "dataset" not in self.model_fields_set and (self.scenario == "natural" or self.path is not None):
            object.__setattr__(self, "dataset", OWN)  # frozen from here on
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
        partition, there = PRESETS[self.scenario].partition, group_count(self, usual)
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
        if partition == "dirichlet":
            used["beta"] = self.beta or 1.0
        if usual is not None:
            if partition == "pathological":
                fitting = tuple(min(number, usual.classes) for number in CLASSES_PER_GROUP)
                used["classes_per_group"] = self.classes_per_group or fitting
            used["test_samples"] = self.test_samples or usual.test_samples
            samples = self.samples or preset.samples or usual.samples
            if partition != "dirichlet":  # where None deals out the whole training set
                used["samples"] = samples
            if partition in HEEDED["sizes"]:
                used["sizes"] = self.sizes or (max(1, samples // 2), samples, 2 * samples)
            if partition in HEEDED["dominant"]:
                used["dominant"] = _dominant(self, usual)
        if shift in ("labels", "rotation") and (groups := group_count(self, usual)):
            used["groups"] = groups
            if shift == "rotation":
                used["angles"] = self.angles or tuple(360 * g / groups for g in range(groups))
        return type(self).model_validate({**self.model_dump(), **used})


def _dominant(config: DataConfig, usual: Usual) -> Sequence[Sequence[int]]:
    if config.dominant is None and config.groups is None and usual.dominant is not None:
        return usual.dominant
    return config.dominant or dominant_sets(usual.classes, config.groups or min(GROUPS, usual.classes))


def group_count(config: DataConfig, usual: Usual | None = None) -> int | None:
    """How many groups there are; client i is in group i modulo this. None: own data have to be read to know."""
    partition = PRESETS[config.scenario].partition
    if partition == "natural":
        return config.groups or GROUPS
    if partition == "pathological":
        return len(config.classes_per_group or CLASSES_PER_GROUP)
    if usual is None:
        return len(config.dominant) if config.dominant else config.groups
    return len(_dominant(config, usual))
