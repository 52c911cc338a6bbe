"""A model in use: from samples as users have them to classes and probabilities."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from fedpac.data.clients import Pool, Scenario
from fedpac.data.images import AS_THEY_ARE, Colour, Pictures
from fedpac.data.own_samples import ArrayLike
from fedpac.data.preprocessing import Preprocessing
from fedpac.data.tables import Table
from fedpac.errors import ConfigError, DataError
from fedpac.task import Task
from fedpac.threads import one_thread
from fedpac.training import logits

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Inputs(BaseModel):
    """What a network's samples look like.

    bytes   uint8 images (channels, height, width), normalised by `mean` and `std`
    whole   whole numbers such as tokens; `as_floats` where the network takes floats only
    float   numbers as they are
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["bytes", "whole", "float"]
    shape: Annotated[tuple[Annotated[int, Field(ge=1, le=1 << 24)], ...], Field(min_length=1, max_length=8)]
    mean: tuple[Finite, ...] | None = None
    std: tuple[Annotated[Finite, Field(gt=0)], ...] | None = None
    images: Pictures | None = None  # of folders of images: what made them alike
    precision: Literal["float32", "float64"] = "float32"
    as_floats: bool = False

    @model_validator(mode="after")
    def _normalised(self) -> Self:
        channels = self.shape[0] if len(self.shape) == 3 else None
        if self.kind == "bytes" and not (channels == len(self.mean or ()) == len(self.std or ())):
            raise ValueError("images need a mean and a std for each channel")
        return self

    @classmethod
    def of(cls, pool: Pool, task: Task, pictures: Pictures | None = None) -> "Inputs":
        images, floats = pool.x.dtype == torch.uint8, pool.x.is_floating_point()
        return cls(
            kind="bytes" if images else "float" if floats else "whole", shape=tuple(pool.x.shape[1:]),
            mean=pool.mean if images else None, std=pool.std if images else None, images=pictures,
            precision="float64" if task.dtype == torch.float64 else "float32", as_floats=task.floats_only,
        )  # fmt: skip

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.precision == "float64" else torch.float32

    def normalised(self, x: Tensor) -> Tensor:
        """Bytes as the network takes them."""
        mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (self.mean, self.std))
        return (x.float() / 255 - mean) / std

    def read_image(self, file: Path) -> NDArray[np.uint8]:
        """An image file as those that the model was trained on: (1, channels, height, width)."""
        if self.kind != "bytes":
            raise DataError(f"this model takes samples of shape {self.shape}, not images; pass an .npz file with x")
        channels, height, width = self.shape
        colour: Colour = "grey" if channels == 1 else "colour"
        pictures = (self.images or AS_THEY_ARE).model_copy(update={"colour": colour})
        pixels = pictures.read(file)
        if pixels.shape[:2] != (height, width):
            h, w = pixels.shape[:2]
            raise DataError(f"{file} is {w} x {h} pixels, expected {width} x {height}.")
        return pixels.transpose(2, 0, 1)[None]

    def cast(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if x.is_floating_point() or self.as_floats else x

    def prepared(self, x: ArrayLike) -> Tensor:
        """Samples in the form of the training data, normalised in the same way; an error if they are none."""
        try:
            x = torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"x is not a numeric array ({error})") from None
        images, whole = self.kind == "bytes", self.kind != "float"
        if x.dtype == torch.uint8 and not whole:
            raise DataError("x has bytes, but the model was trained on floats; convert them as in training")
        if x.dtype == torch.uint8 and images:
            if x.dim() == 3 and self.shape[0] == 1:
                x = x.unsqueeze(1)
            elif x.dim() == 4 and tuple(x.shape[1:]) != self.shape:
                x = x.permute(0, 3, 1, 2)
        if tuple(x.shape[1:]) != self.shape:
            raise DataError(f"x has shape {tuple(x.shape)}, expected (samples, {', '.join(map(str, self.shape))})")
        if not len(x):
            raise DataError("x has no samples")
        if x.is_floating_point():
            if whole and not images and not self.as_floats:
                raise DataError(f"x has {x.dtype}; the model was trained on whole numbers, such as tokens")
            if not x.float().isfinite().all():
                raise DataError("x has infinite or NaN values")
            return x
        if not images:
            return x.long() if whole else x.to(self.dtype)
        if x.dtype != torch.uint8:
            raise DataError(f"x has {x.dtype}; images are bytes (uint8), or floats that are already normalised")
        return self.normalised(x)


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model with all that it needs to predict. `module` is the torch module itself.

    class_names     what the classes are called; '0', '1', ... where nobody named them. None: it predicts numbers
    preprocessing   of tables: what makes the network's input of raw rows
    optional        of tables: columns that may be left out, because the model's own site does not have them
    """

    module: nn.Module = field(repr=False)
    inputs: Inputs
    class_names: tuple[str, ...]
    preprocessing: Preprocessing | None = field(default=None, repr=False)
    optional: tuple[str, ...] = ()

    def predict(self, x: object) -> NDArray[np.int64] | NDArray[np.float64]:
        """The number of every sample's class; x as in the training data: images, numbers or raw rows of a table.

        Of a model that predicts numbers, that number.
        """
        if not self.class_names:
            values: NDArray[np.float64] = self._scores(x)[:, 0].numpy()
            return self.own_units(values)
        classes: NDArray[np.int64] = self.predict_proba(x).argmax(axis=1)
        return classes

    def labels(self, x: object) -> list[str]:
        """The name of the class of every sample."""
        return [self.class_names[k] for k in self.predict_proba(x).argmax(axis=1)]

    def predict_proba(self, x: object) -> NDArray[np.float64]:
        """(samples, classes): the probability of each class."""
        if not self.class_names:
            raise ConfigError("this is a regression model without classes: use predict")
        proba: NDArray[np.float64] = F.softmax(self._scores(x), dim=1).numpy()  # the same for log-probabilities
        return proba

    def own_units(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of a number that was scaled to train on it: in the target's units."""
        scaled = self.preprocessing and self.preprocessing.predicted
        return values * scaled.scale + scaled.mean if scaled else values

    def _scores(self, x: object) -> Tensor:
        with one_thread():
            return logits(self.module, self.inputs.cast(self.prepare(x))).double()

    def prepare(self, x: object) -> Tensor:
        """Samples as the network takes them, up to their precision."""
        rows = self.preprocessing is not None and not isinstance(x, Tensor | np.ndarray)
        if isinstance(x, Table) and self.preprocessing is None:
            raise DataError(f"{x.name} is a table, but this model takes samples of shape {self.inputs.shape}")
        if rows and self.preprocessing is not None:
            x = self.preprocessing.apply(x, self.optional)
        return self.inputs.prepared(x)  # type: ignore[arg-type]  # whatever it is, it is looked at


def class_names_of(scenario: Scenario) -> tuple[str, ...]:
    return scenario.class_names or tuple(str(k) for k in range(scenario.classes))
