"""What one client holds: a few indices into images that all clients share.

The images lie once in memory (or in a memory-mapped file); a client's own tensors exist only while it is being visited.
So ten thousand clients cost their indices and no more. No repr shows samples: it may end up in a log.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedpac.data.images import Pictures
from fedpac.data.preprocessing import Preprocessing
from fedpac.data.shift import rotate, turn_each
from fedpac.timing import span


@dataclass(frozen=True, eq=False)
class Pool:
    """Samples shared by many clients.

    x   uint8 images (N, C, H, W) with their normalisation; or floats or signed whole numbers (tokens) of any shape
    """

    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)  # int64; floats where numbers are to be predicted
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @cached_property
    def normalisation(self) -> tuple[Tensor, Tensor] | None:
        """(factor, subtrahend) of every channel: (x / 255 - mean) / std is x * factor - subtrahend."""
        if self.mean is None or self.std is None:
            return None
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return 1 / (255 * std), mean / std


@dataclass(frozen=True, eq=False)
class Samples:
    """One client's share of a pool, with the shift that is the client's own."""

    pool: Pool
    index: Tensor = field(repr=False)  # int64
    relabel: Tensor | None = field(default=None, repr=False)  # relabel[y] is what this client calls class y
    rotate: float = 0.0  # degrees, counter-clockwise
    turns: Tensor | None = field(default=None, repr=False)  # instead, degrees for each sample

    def __len__(self) -> int:
        return len(self.index)

    def only(self, which: Tensor) -> "Samples":
        """Some of them, by a mask or by their places."""
        return replace(self, index=self.index[which], turns=None if self.turns is None else self.turns[which])

    def labels(self) -> Tensor:
        y = self.pool.y[self.index]
        return y if self.relabel is None else self.relabel[y]

    def class_counts(self, classes: int) -> Tensor:
        """How many samples of each class; empty where there are none."""
        if not classes:
            return torch.empty(0, dtype=torch.int64)
        return torch.bincount(self.labels(), minlength=classes)

    @span("samples")
    def tensors(self) -> tuple[Tensor, Tensor]:
        """A fresh (x, y): x contiguous and normalised; images are float32, whole numbers int64, as y is."""
        x = self.pool.x.index_select(0, self.index)
        if not x.is_floating_point():
            x = x.float() if x.dtype == torch.uint8 or self.rotate or self.turns is not None else x.long()
        # before the normalisation, so that the corners turn black
        x = rotate(x, self.rotate) if self.turns is None else turn_each(x, self.turns)
        if self.pool.normalisation is not None:
            factor, subtrahend = self.pool.normalisation
            x.mul_(factor).sub_(subtrahend)
        return x, self.labels()

    def alone(self) -> "Samples":
        """The same samples in a pool of their own, to be sent elsewhere without everybody else's."""
        own = replace(self.pool, x=self.pool.x.index_select(0, self.index), y=self.pool.y.index_select(0, self.index))
        return replace(self, pool=own, index=torch.arange(len(self)))

    def black(self) -> Tensor:
        """The normalised value of a black pixel in every channel: the border that random crops show."""
        mean, std = self.pool.mean, self.pool.std
        if mean is None or std is None:
            return torch.zeros(self.pool.x.shape[1])
        return -torch.tensor(mean) / torch.tensor(std)


@dataclass(frozen=True, eq=False)
class ClientData:
    train: Samples
    test: Samples
    augment: bool = False  # random crops and flips while training
    group: int | None = None  # clients of one group share distribution and shift
    name: str = ""
    validation: Samples | None = None  # held out of the training part, to choose by
    unit: float = 1.0  # of a number to predict that was scaled: what 1 is in the target's own units

    def alone(self) -> "ClientData":
        return replace(self, train=self.train.alone(), test=self.test.alone())


@dataclass(frozen=True, eq=False)
class Scenario:
    clients: list[ClientData] = field(repr=False)
    classes: int  # 0: a number is predicted
    shape: tuple[int, ...]  # of one sample
    name: str
    note: str = ""  # "stand-in: ..." where numbers may not be set beside published ones
    class_names: tuple[str, ...] = ()  # where classes have names
    preprocessing: Preprocessing | None = field(default=None, repr=False)  # of tables: what made numbers of raw rows
    images: Pictures | None = None  # of folders of images: what made them alike

    @property
    def sample(self) -> Tensor:
        """An input of the network: all zeros, or of tokens all the largest, so that it shows no client's data."""
        x = self.clients[0].train.pool.x
        if x.is_floating_point() or x.dtype == torch.uint8:
            return torch.zeros(self.shape, dtype=torch.float32 if x.dtype == torch.uint8 else x.dtype)
        return torch.full(self.shape, int(x.max()))
