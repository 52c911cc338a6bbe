"""A bundle: one client's model in a folder of its own, which needs neither the run nor its data.

model.json            what it is: network, inputs, classes, metrics, where it comes from, licence
weights.safetensors   its weights
preprocessing.json    of tables: what makes the network's input of raw rows
model.onnx            the same model for programs without torch, where it can be expressed
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedpac.bundles.networks import Combination, Network
from fedpac.methods.base import Which
from fedpac.prediction import Inputs

CARD: Final = "model.json"
WEIGHTS: Final = "weights.safetensors"
PREPROCESSING: Final = "preprocessing.json"
ONNX: Final = "model.onnx"
File: TypeAlias = Literal["weights.safetensors", "preprocessing.json", "model.onnx"]
NO_LICENCE = "none given: ask the author before you share it"


class Card(BaseModel):
    """model.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    client: str
    method: str
    title: str
    which: Which
    network: Network
    combination: Combination
    inputs: Inputs
    class_names: Annotated[tuple[str, ...], Field(max_length=100_000)]  # none: it predicts a number
    optional: tuple[str, ...] = ()
    metrics: dict[str, Any] = {}  # on the client's own test data
    provenance: dict[str, Any] = {}
    licence: str = NO_LICENCE
    notes: tuple[str, ...] = ()  # what whoever passes it on should know
    onnx: str = ""  # why there is no model.onnx
    files: dict[File, str] = {}  # and their checksums

    @model_validator(mode="after")
    def _has_weights(self) -> Self:
        if WEIGHTS not in self.files:
            raise ValueError("it names no weights")
        return self


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digests(files: Mapping[File, bytes]) -> dict[File, str]:
    return {name: digest(data) for name, data in files.items()}
