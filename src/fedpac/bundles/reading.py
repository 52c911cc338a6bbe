"""Opening a bundle, which may come from a stranger: nothing in it is executed, and what it claims is checked first."""

import contextlib
import copy
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from fedpac.bundles.card import CARD, PREPROCESSING, WEIGHTS, Card, File, digest
from fedpac.bundles.networks import Make, Mixed, Neighbours
from fedpac.data.preprocessing import Preprocessing
from fedpac.errors import ConfigError, DataError, FedpacError, ModelError
from fedpac.message import Weights
from fedpac.models import with_forward
from fedpac.prediction import Predictor

LONGEST = 4 << 20  # bytes of the JSON files
LARGEST = 8 << 30  # of the weights
SPARE = 1 << 24  # values that a network may hold beside its weights, such as tables of positions


class Model(Predictor):
    """A model from a bundle. `card` says what it is and where it comes from."""

    card: Card

    def __repr__(self) -> str:
        card = self.card
        what = f"classes {', '.join(card.class_names[:10])}" if card.class_names else "predicts a number"
        return f"Model({card.title}, {card.client}, {card.which}, {what})"


def load_model(path: Path | str, network: nn.Module | None = None, trust: bool = False) -> Model:
    """The model in a bundle, to predict with: `fedpac.load_model("model").predict(x)`.

    A network from outside fedpac is loaded only if you pass an instance of it (`network`; a copy gets the weights) or
    `trust` the bundle: importing its code runs it.
    """
    path = Path(path)
    card = read_card(path)
    weights = _part(path, WEIGHTS, card, LARGEST)
    preprocessing = None
    if PREPROCESSING in card.files:
        text = _part(path, PREPROCESSING, card, LONGEST)
        try:
            preprocessing = Preprocessing.from_json(text, str(path / PREPROCESSING))
        except DataError as error:
            raise ModelError(str(error)) from None
    with _explained(path):
        module = _module(card, load(weights), network, trust)
        _check_parts(card, module, preprocessing)
    model = Model(module, card.inputs, card.class_names, preprocessing, card.optional)
    object.__setattr__(model, "card", card)
    return model


def read_card(path: Path) -> Card:
    if not (path / CARD).is_file():
        raise ModelError(
            f"{path} does not contain a model ({CARD} is missing); create one with 'fedpac export RUN --out {path}'"
        )
    try:
        return Card.model_validate_json(_bytes(path / CARD, LONGEST), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "it"
        raise ModelError(f"{path / CARD} does not describe a model: {where}: {problem['msg']}") from None


def is_bundle(path: Path) -> bool:
    return (path / CARD).is_file()


def _part(folder: Path, name: File, card: Card, most: int) -> bytes:
    """A file of the bundle, if it is the one that the card names."""
    content = _bytes(folder / name, most)
    if digest(content) != card.files[name]:
        raise ModelError(f"{folder / name} is damaged or belongs to another bundle: its checksum does not match")
    return content


def _bytes(path: Path, most: int) -> bytes:
    if not path.is_file():
        raise ModelError(f"{path} is missing")
    try:
        size = path.stat().st_size
        if size > most:
            raise ModelError(f"{path} has {size:,} bytes; no model has more than {most:,}")
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except FedpacError as error:
        raise ModelError(f"{path}: {error}") from None
    except (SafetensorError, LookupError, ArithmeticError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise ModelError(f"{path} is damaged: {error}") from None


def _module(card: Card, tensors: Weights, network: nn.Module | None, trust: bool) -> nn.Module:
    """The predictor with its weights. What it would hold is compared with them before anything is allocated."""
    shape, outputs = card.inputs.shape, len(card.class_names) or 1

    def make() -> nn.Module:
        if network is not None:
            return with_forward(copy.deepcopy(network))
        return card.network.make(shape, outputs, trust)

    there = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if isinstance(card.combination, Neighbours):  # the memory's size is said twice
        size = (card.combination.samples, card.combination.features)
        if there.get("keys") != size:
            raise ModelError(f"the memory is not {size[0]} x {size[1]}, as stated in {CARD}")
    if isinstance(card.combination, Mixed) and card.combination.components > len(there):
        raise ModelError(
            f"{card.combination.components} networks are mixed, but there are {len(there)} sets of weights"
        )
    if network is None and card.network.kind != "own":
        _check_size(card, make, sum(map(math.prod, there.values())))
    with torch.random.fork_rng(devices=[]):  # the weights are replaced: nobody's random numbers change for it
        module = card.combination.make(make)
    own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    for name in sorted(own.keys() | there.keys()):
        if own.get(name) != there.get(name):
            raise ModelError(
                f"{WEIGHTS} does not fit the network: '{name[:80]}' has shape {there.get(name, 'none')}, expected "
                f"{own.get(name, 'none')}"
            )
    module = module.to(card.inputs.dtype)
    module.load_state_dict(tensors)
    bounded = {name: t.exp() if name == "log_pi" else t for name, t in tensors.items()}  # a share may be 0
    if not all(t.isfinite().all() for t in bounded.values() if t.is_floating_point()):
        raise ModelError(f"{WEIGHTS} has infinite or NaN values")
    return module.eval()


def _check_size(card: Card, make: Make, values: int) -> None:
    """On torch's 'meta' device a network of any size costs nothing."""
    with torch.device("meta"):
        module = card.combination.make(make)
    held = sum(t.numel() for t in (*module.parameters(), *module.buffers()))
    if held > values + SPARE:
        raise ModelError(f"the network would hold {held:,} values, but its weights are {values:,}")


def _check_parts(card: Card, module: nn.Module, preprocessing: Preprocessing | None) -> None:
    """Network, inputs, classes and preprocessing fit each other: one sample goes through."""
    if preprocessing is not None and (preprocessing.width,) != card.inputs.shape:
        raise ModelError(
            f"the preprocessing gives {preprocessing.width} numbers, the network takes {card.inputs.shape}"
        )
    if math.prod(card.inputs.shape) > SPARE:
        raise ModelError(f"samples of shape {card.inputs.shape} are larger than any known input")
    whole = card.inputs.kind == "whole" and not card.inputs.as_floats
    x = torch.zeros((1, *card.inputs.shape), dtype=torch.int64 if whole else card.inputs.dtype)
    try:
        with torch.no_grad():
            scores = module(x)
    except Exception as error:  # whatever odd layers do to it
        raise ConfigError(f"the network does not accept samples of shape {card.inputs.shape}: {error}") from None
    if not isinstance(scores, torch.Tensor) or scores.shape != (1, len(card.class_names) or 1):
        raise ConfigError(f"the network does not give one score for each of {len(card.class_names)} classes")
