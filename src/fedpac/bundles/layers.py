"""A network as data: torch's own layers by name with their settings, so that whoever opens it needs no code of ours.

Anything else in a network (a class of the user's own, a layer that is not listed here) has no such form.
"""

import inspect
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from fedpac.errors import ConfigError
from fedpac.models import Classifier

Tree: TypeAlias = dict[
    str, Any
]  # {"layer": "Linear", "in_features": 4, ...}; of containers {"layer": ..., "parts": {}}

LAYERS: Mapping[str, type[nn.Module]] = {
    layer.__name__: layer
    for layer in (
        nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d,
        nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm,
        nn.InstanceNorm1d, nn.InstanceNorm2d, nn.Dropout, nn.Dropout2d, nn.Flatten, nn.Identity, nn.ReLU, nn.LeakyReLU,
        nn.GELU, nn.ELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.ReLU6,
    )
}  # fmt: skip
WHERE = ("device", "dtype", "inplace")  # how a layer is made, not what it is
DEEPEST = 16
MOST = 10_000  # layers
LARGEST = 1 << 31  # of a number among the settings


class NoTreeError(Exception):
    """The network has no form as data; the text says which part has none."""


def tree_of(module: nn.Module) -> Tree:
    """What `build` makes the same network of, weights aside."""
    kind = type(module)
    if kind in (nn.Sequential, Classifier):
        return {"layer": kind.__name__, "parts": {name: tree_of(part) for name, part in module.named_children()}}
    if LAYERS.get(kind.__name__) is not kind:
        raise NoTreeError(f"{kind.__module__}.{kind.__qualname__} is not one of the supported torch layers")
    if changed := [n for n, p in module.named_parameters(recurse=False) if n not in ("weight", "bias")]:
        raise NoTreeError(f"{kind.__name__} has non-standard parameters: {', '.join(changed)}")
    return {"layer": kind.__name__, **_settings(module)}


def _settings(module: nn.Module) -> dict[str, Any]:
    found = {}
    for name, parameter in inspect.signature(type(module).__init__).parameters.items():
        if name in ("self", "_weight", "_freeze", *WHERE) or parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:  # Identity takes anything
            continue
        value = getattr(module, name)
        if isinstance(value, nn.Parameter) or (name == "bias" and value is None):
            value = value is not None  # `bias` says whether there is one
        if isinstance(value, torch.Size | tuple):
            value = list(value)
        if value != parameter.default:
            found[name] = value
    return found


def build(tree: object, depth: int = 0, budget: list[int] | None = None) -> nn.Module:
    """The network of a tree that may come from a stranger: only listed layers, only their settings, within bounds."""
    budget = [MOST] if budget is None else budget
    budget[0] -= 1
    if not isinstance(tree, dict) or depth > DEEPEST or budget[0] < 0:
        raise ConfigError("the network description is not a tree of layers, or is too deep or too large")
    settings = {name: value for name, value in tree.items() if name != "layer"}
    kind = tree.get("layer")
    if kind in ("Sequential", "Classifier"):
        parts = settings.pop("parts", None)
        if not isinstance(parts, dict) or settings:
            raise ConfigError(f"the layer {kind} has {', '.join(map(str, settings)) or 'no parts'}; expected parts")
        return _container(kind, {str(n): build(part, depth + 1, budget) for n, part in parts.items()})
    if not isinstance(kind, str) or kind not in LAYERS:
        raise ConfigError(f"the network has a layer {str(kind)[:40]!r}, which is not one of the supported torch layers")
    known = inspect.signature(LAYERS[kind].__init__).parameters
    for name, value in settings.items():
        if name not in known or name in ("self", "_weight", "_freeze", *WHERE) or not _plain(value):
            raise ConfigError(
                f"the layer {kind} has {str(name)[:40]} = {str(value)[:40]}, which is not one of its settings"
            )
    _check_padding(kind, settings)
    try:
        return LAYERS[kind](**{n: tuple(v) if isinstance(v, list) else v for n, v in settings.items()})
    except (TypeError, ValueError, RuntimeError, AssertionError, ArithmeticError, IndexError) as error:
        raise ConfigError(f"the layer {kind} cannot be created with these settings: {error}") from None


def _container(kind: str, parts: dict[str, nn.Module]) -> nn.Module:
    if kind == "Classifier":
        if set(parts) != {"body", "head"}:
            raise ConfigError(f"a Classifier has a body and a head, not {', '.join(parts) or 'nothing'}")
        return Classifier(parts["body"], parts["head"])
    sequence = nn.Sequential()
    for name, part in parts.items():
        try:
            sequence.add_module(name, part)
        except KeyError as error:
            raise ConfigError(f"a part of the network cannot be called {name[:40]!r}: {error}") from None
    return sequence


def _plain(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= 4 and all(isinstance(v, int) and _plain(v) for v in value)
    if isinstance(value, bool | None):
        return True
    return isinstance(value, str | float) or (isinstance(value, int) and -LARGEST < value < LARGEST)


def _check_padding(kind: str, settings: dict[str, Any]) -> None:
    """A kernel is as large as its weights; a margin or an output could be of any size, and cost nothing in the file."""
    for name, bound in (("padding", "kernel_size"), ("output_size", None), ("dilation", None)):
        values = settings.get(name, 0)
        most = max(_numbers(settings.get(bound, 1)), default=1) if bound else 64
        if max(_numbers(values), default=0) > most:
            raise ConfigError(f"the layer {kind} has {name} = {values}; expected at most {most}")


def _numbers(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int)]
