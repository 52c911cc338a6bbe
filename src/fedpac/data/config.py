"""Which data, dealt out how: the scenarios by name, and the config section that chooses among them."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedpac.data.images import Colour, Fit, Pictures, Side, pictures_of
from fedpac.data.own import OWN
from fedpac.data.published import PUBLISHED, Usual
from fedpac.data.scenarios import SCENARIOS, Rule, Shift
from fedpac.errors import unknown

TEST_SHARE = 0.2
TURNING: tuple[Shift, ...] = ("rotation", "turns")
BY_GROUP: tuple[Shift, ...] = ("labels", *TURNING)
MOST = 1_000_000_000  # samples dealt in all: 8 GB of indices
Count = Annotated[int, Field(ge=1, le=10_000_000)]


def evenly_spaced_angles(shift: Shift, groups: int) -> tuple[float, ...]:
    return tuple(360 * g / groups if shift == "rotation" else 90 * (g + 1) / groups for g in range(groups))


class DataConfig(BaseModel):
    """Which data the clients hold. A key left out takes the paper's value for its data set and scenario."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str = Field("digits", description=f"{', '.join(PUBLISHED)}; or '{OWN}' for the data under `path`")
    scenario: str = Field("groups", description=f"how data differ between clients: {', '.join(SCENARIOS)}")
    shift: Shift | None = Field(
        None,
        description="on top of the partition: 'labels' permutes the labels of each group (concept shift), 'rotation' "
        "turns the images of each group (feature skew), 'turns' turns each image at random, 'source' gives the first "
        "half of the clients CINIC-10's images "
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
        None,
        description="the folder or npz file of your own data, in all scenarios but natural dealt out anew; "
        "or the schema of your tables (toml), scenario natural",
    )
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="own data: share of the samples kept for testing, where they are not split yet; 0.2"
    )
    target: Literal["class", "number"] | None = Field(
        None, description="own npz files: 'number' if y are numbers to predict; classes (a schema of tables says it)"
    )
    validation_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="share of each client's training samples that is held out, to choose rounds and settings by; none",
    )
    image_size: Side | tuple[Side, Side] | None = Field(
        None, description="own folders of images: the size they get, one number or [height, width]; as they are"
    )
    image_fit: Fit | None = Field(
        None, description="with image_size: 'resize' (default), or 'crop' to keep proportions and the middle"
    )
    image_colour: Colour | None = Field(
        None, description="own folders of images: 'grey' or 'colour'; colour if any image has it"
    )
    angles: tuple[Annotated[float, Field(ge=-360, le=360)], ...] | None = Field(
        None,
        description="shift 'rotation': degrees for each group; evenly spaced over the full turn. "
        "'turns': the largest of each group, either way; evenly spaced up to 90",
    )
    augment: bool | None = Field(None, description="random crops and flips in training; yes for cifar10 and cinic10")

    @field_validator("dataset")
    @classmethod
    def _known_dataset(cls, name: str) -> str:
        if name not in (known := [*PUBLISHED, OWN]):
            raise ValueError(unknown("data set", name, known))
        return name

    @field_validator("scenario")
    @classmethod
    def _known_scenario(cls, name: str) -> str:
        if name not in SCENARIOS:
            raise ValueError(unknown("scenario", name, SCENARIOS))
        return name

    @property
    def images(self) -> Pictures:
        """What is done to images of one's own."""
        return pictures_of(self.image_size, self.image_fit, self.image_colour)

    @property
    def rule(self) -> Rule:
        return SCENARIOS[self.scenario]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "dataset" not in self.model_fields_set and (not self.rule.dealt or self.path is not None):
            object.__setattr__(self, "dataset", OWN)  # frozen from here on
        self._check_keys()
        self._check_dataset()
        each = max(self.samples or 1, self.test_samples or 1, *(self.sizes or (1,)))
        if (asked := each * (self.clients or self.rule.clients)) > MOST:
            raise ValueError(f"clients times samples is {asked:,}; at most {MOST:,} indices are dealt.")
        self.check_against(PUBLISHED.get(self.dataset))
        return self

    def _check_keys(self) -> None:
        """A key that would be ignored is refused, so that nobody believes it did something."""
        for key in type(self).model_fields:
            users = sorted(name for name, rule in SCENARIOS.items() if key in rule.keys)
            if users and self.scenario not in users and getattr(self, key) is not None:
                raise ValueError(
                    f"{key} has no effect in scenario '{self.scenario}'; it applies to {', '.join(users)}."
                )

    def _check_dataset(self) -> None:
        if self.path is not None and self.path.suffix == ".toml" and self.rule.dealt:
            raise ValueError(f"{self.path.name} is a schema of tables, whose sites are fixed: use scenario 'natural'.")
        if self.dataset == OWN and self.path is None:
            raise ValueError(f"your own data (data set '{OWN}') need `path`: the folder or npz file they are in.")
        if self.dataset != OWN and self.path is not None:
            raise ValueError(f"path is for your own data, but the data set is '{self.dataset}': remove one of the two.")
        if self.dataset != OWN and self.test_share is not None:
            raise ValueError(f"test_share is for your own data; data set '{self.dataset}' is already split.")
        if self.dataset != OWN and not self.rule.dealt:
            raise ValueError(
                f"scenario '{self.scenario}' is for your own data: remove '{self.dataset}' and set `path`."
            )
        if self.target is not None and self.dataset != OWN:
            raise ValueError(f"target is for your own data; data set '{self.dataset}' has classes.")
        if self.target is not None and self.path is not None and self.path.suffix == ".toml":
            raise ValueError(f"target is for npz files; {self.path.name} says target_type, or classes.")
        if self.target == "number" and self.rule.dealt:
            raise ValueError(f"scenario '{self.scenario}' deals samples out by class; a number needs 'natural'.")
        shaped = [k for k in ("image_size", "image_fit", "image_colour") if getattr(self, k) is not None]
        if shaped and (self.dataset != OWN or (self.path is not None and self.path.suffix in (".npz", ".toml"))):
            raise ValueError(f"{shaped[0]} is for your own folders of images.")
        if self.image_fit is not None and self.image_size is None:
            raise ValueError("image_fit has no effect without image_size.")
        sourced = [name for name, entry in PUBLISHED.items() if entry.sources]
        if self.shift_used == "source" and self.dataset not in sourced:
            known = "' or '".join(sourced)
            raise ValueError(
                f"shift 'source' is for data set '{known}', whose images have a source; not '{self.dataset}'."
            )

    def check_against(self, usual: Usual | None) -> None:
        """What the classes and groups have to agree with; of own data the classes are known once they are read."""
        if usual is not None:
            self._check_classes(usual.classes)
        there = self.rule.groups(self, usual)
        grouped = self.rule.grouped or self.shift_used in BY_GROUP
        if self.groups is not None and not grouped:
            raise ValueError(f"groups has no effect in scenario '{self.scenario}' without a shift of labels or angles.")
        if self.groups not in (None, there):
            raise ValueError(f"groups is {self.groups}, but the other keys give {there} groups.")
        if self.angles is not None and self.shift_used not in TURNING:
            raise ValueError("angles has no effect without shift 'rotation' or 'turns'.")
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
        return self.rule.shift if self.shift is None else self.shift

    def resolved(self, usual: Usual | None = None) -> Self:
        """The same data with every value that is used written out; what stays None is not used here.

        usual: of own data, once they have been read. Before that, what depends on them stays None too.
        """
        usual = usual or PUBLISHED.get(self.dataset)
        used: dict[str, object] = {"shift": self.shift_used, "augment": self.augment}
        if self.augment is None:
            used["augment"] = usual is not None and usual.augment
        if self.dataset == OWN:
            used["path"] = self.path and self.path.expanduser().absolute()  # the run may be resumed from elsewhere
            used["test_share"] = self.test_share or TEST_SHARE
        used |= self.rule.filled(self, usual)
        if self.shift_used in BY_GROUP and (groups := self.rule.groups(self, usual)):
            used["groups"] = groups
            if self.shift_used in TURNING:
                used["angles"] = self.angles or evenly_spaced_angles(self.shift_used, groups)
        return type(self).model_validate({**self.model_dump(), **used})
