"""What a user's module must be, found out before the first round: what does not fit is refused by name.

Methods train, send and use the body and the head separately, keep all weights outside the module between visits, and
lend one module to many clients. A module that these would silently change is an error here.
"""

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedpac import native
from fedpac.errors import ConfigError
from fedpac.models import BodyAndHead, Classifier, Split, precision_of, trainable

PRECISIONS = {torch.float32, torch.float64}
T = TypeVar("T")


def check_model(model: nn.Module) -> None:
    """Whether the module has a body and a head, and weights that a federation can train."""
    given: object = model
    if not isinstance(given, nn.Module):
        raise ConfigError(f"the model is a {type(given).__name__}; expected a torch module with a body and a head")
    if not isinstance(model, BodyAndHead) or not all(isinstance(m, nn.Module) for m in (model.body, model.head)):
        parts = [name for name, _ in model.named_children()]
        usual = (
            f'. If {parts[-1]} is the last layer, fedpac.split(model, head="{parts[-1]}") makes them' if parts else ""
        )
        raise ConfigError(
            f"the model {_name(model)} needs two sub-modules: `body` (input -> features) and "
            f"`head` (features -> logits); it has {', '.join(parts) or 'none'}{usual}"
        )
    tensors = model.state_dict(keep_vars=True)
    if lazy := [n for n, t in tensors.items() if is_lazy(t)]:
        raise _unfit(model, f"has weights without a shape yet ({_some(lazy)}): call it on a sample first")
    if odd := [n for n, t in tensors.items() if not isinstance(t, Tensor)]:
        raise _unfit(model, f"has non-tensor state ({_some(odd)}), which cannot be sent: make it a buffer")
    if strangers := [n for n in tensors if not n.startswith(("body.", "head."))]:
        raise _unfit(
            model, f"has weights outside its body and its head: "
            f"{_some(strangers)}"
        )  # fmt: skip
    names = defaultdict(list)
    for name, tensor in tensors.items():
        names[id(tensor)].append(name)
    if tied := [some for some in names.values() if len({name.partition(".")[0] for name in some}) > 1]:
        raise _unfit(
            model, f"ties weights of its body to weights of its head ({' = '.join(tied[0])}); methods train and send "
            "the two separately: give the head weights of its own"
        )  # fmt: skip
    learning = trainable(model)
    if not learning:
        raise _unfit(model, "has no parameters that require a gradient: there is nothing to train")
    if wrong := [f"{n} is {p.dtype}" for n, p in learning if p.dtype not in PRECISIONS]:
        raise _unfit(model, f"must have parameters in float32 or float64; {_some(wrong)}")


def check_fits(model: nn.Module, sample: Tensor, classes: int) -> int:
    """Whether the module does with samples like this one what methods expect; returns the number of its features.

    sample   one input of the network, in its precision. Floats are also replaced by random ones: zeros will do
    """
    x = torch.stack([sample, _noise(sample) if sample.is_floating_point() else sample])
    try:
        z: object = _look(model, x, lambda m, x: m.body(x))
    except Exception as error:
        raise ConfigError(
            f"the model does not accept samples of shape {tuple(sample.shape)} and type {sample.dtype}: {_told(error)}"
        ) from None
    if not isinstance(z, Tensor) or z.dim() < 2 or len(z) != len(x):
        what = f"shape {tuple(z.shape)}" if isinstance(z, Tensor) else f"type {type(z).__name__}"
        raise _unfit(model, f"has a body that gives {what} for {len(x)} samples; expected one row of features for each")
    scores: object = _tried(model, x, "its head does not accept the features of its body", _in_parts)
    if not isinstance(scores, Tensor) or scores.shape != (len(x), classes):
        shape = tuple(scores.shape[1:]) if isinstance(scores, Tensor) else type(scores).__name__
        raise ConfigError(
            f"the model gives {shape} scores per sample, but there are {classes} classes; change the head's size, "
            "or `classes`"
        )
    for training in (False, True):
        _check_forward(model, x, training)
    _check_side_effects(model, x)
    _check_gradients(model, x)
    return z.flatten(1).shape[1]


def check_split(model: Split, sample: Tensor | None) -> Classifier:
    """Body and head, if one after the other they give what the module they come from gives."""
    whole = model.whole[0]
    if sample is not None:
        precision = precision_of(model)
        for x in _batches(sample, precision):
            try:
                expected: object = _look(whole, x, _whole)
            except Exception:  # floats where it takes whole numbers, or the other way round; check_fits says so
                continue
            parts = _tried(model, x, "its head does not accept the features of its body", _in_parts)
            if not isinstance(expected, Tensor) or expected.shape != parts.shape or not _close(parts, expected):
                raise _unfit(
                    whole, f"is not head(body(x)) with the head '{model.name}': something comes after that layer, or "
                    "it is used more than once. Choose the last layer"
                )  # fmt: skip
    return Classifier(model.body, model.head)


def accelerated(model: nn.Module, sample: Tensor | None) -> nn.Module:
    """The module with fused kernels, where it gives the same with them.

    A block of a module's own may call the layers of an nn.Sequential one by one, with something in between (a shortcut,
    features that are kept): nothing of it may be fused.
    """
    fused = native.accelerate(copy.deepcopy(model))
    if sample is None:
        return fused
    for x in _batches(sample, precision_of(model)):
        try:
            plain = [_look(model, x, see) for see in (_whole, _in_parts)]
        except Exception:  # whatever is wrong with the module: check_fits says it
            continue
        try:
            same = all(_close(_look(fused, x, see), y) for see, y in zip((_whole, _in_parts), plain, strict=True))
        except Exception:
            return model
        if not same:
            return model
    return fused


def _batches(sample: Tensor, precision: torch.dtype) -> list[Tensor]:
    """Two samples at a time: as floats, and as they are where they are whole numbers."""
    floats = torch.stack([_noise(sample.to(precision)), sample.to(precision)])
    return [floats] if sample.is_floating_point() else [torch.stack([sample, sample]), floats]


def wants_floats(model: nn.Module, sample: Tensor, dtype: torch.dtype) -> bool:
    """Whether samples such as this one, of whole numbers, can be used as floats only."""

    def takes(x: Tensor) -> bool:
        try:
            _look(model, torch.stack([x, x]), _in_parts)
        except Exception:  # whatever the user's module raises
            return False
        return True

    return not sample.is_floating_point() and not takes(sample) and takes(sample.to(dtype))


def _in_parts(model: Any, x: Tensor) -> Tensor:
    scores: Tensor = model.head(model.body(x))
    return scores


def _check_forward(model: nn.Module, x: Tensor, training: bool) -> None:
    """forward(x) is head(body(x)), drawing the same random numbers."""
    parts = _tried(model, x, "it cannot be trained on two samples", _in_parts, training)
    whole: object = _tried(
        model, x, "its forward does not accept a batch of samples as its only argument", _whole, training
    )
    if not isinstance(whole, Tensor) or whole.shape != parts.shape or not _close(whole, parts):
        raise _unfit(
            model, f"does not give head(body(x)) {'while it trains' if training else 'when it predicts'}: its "
            "forward does more. Methods use the two separately, so what comes before or between them (an activation, "
            "dropout, a reshape) belongs to the body, as in nn.Sequential(body, nn.Tanh()), and what comes after them "
            "to the head"
        )  # fmt: skip


def _check_side_effects(model: nn.Module, x: Tensor) -> None:
    """Nothing but the state dict remembers a sample: the module is lent to all clients, in any order."""

    def second(m: nn.Module, x: Tensor) -> Tensor:
        m(x.clone())
        return _whole(m, x)

    if not _close(_look(model, x, second), _look(model, x, _whole, seed=1)):
        raise _unfit(
            model, "gives other scores for the same samples from call to call when it predicts; random numbers belong "
            "to training alone (F.dropout needs training=self.training), and state into buffers"
        )  # fmt: skip

    def changed(m: nn.Module, x: Tensor) -> bool:
        given = x.clone()
        m(x)
        return not torch.equal(given, x)

    if _look(model, x, changed):
        raise _unfit(model, "modifies its input in place; write the result to a new tensor")

    def forgotten(m: nn.Module, x: Tensor) -> list[str]:
        kept = m.state_dict().keys()
        before = {n: b.clone() for n, b in m.named_buffers() if n not in kept}
        m(x)
        return [n for n, b in m.named_buffers() if n in before and not torch.equal(b, before[n])]

    if buffers := _look(model, x, forgotten, training=True):
        raise _unfit(model, f"modifies non-persistent buffers in training, which are lost: {_some(buffers)}")


def _check_gradients(model: nn.Module, x: Tensor) -> None:
    """A parameter that no gradient reaches would still be decayed."""

    @torch.enable_grad()
    def unreached(m: nn.Module, x: Tensor) -> list[str]:
        learning, scores = trainable(m), _whole(m, x).sum()
        if not scores.requires_grad:
            return [n for n, _ in learning]
        slopes = torch.autograd.grad(scores, [p for _, p in learning], allow_unused=True)
        return [n for (n, _), slope in zip(learning, slopes, strict=True) if slope is None]

    if names := _look(model, x, unreached, training=True):
        raise _unfit(
            model, f"has parameters that get no gradient: {_some(names)}. Freeze them with "
            "requires_grad_(False), or remove them"
        )  # fmt: skip


def _whole(model: nn.Module, x: Tensor) -> Tensor:
    scores: Tensor = model(x)
    return scores


def _tried(model: nn.Module, x: Tensor, problem: str, see: Callable[[Any, Tensor], T], training: bool = False) -> T:
    try:
        return _look(model, x, see, training)
    except Exception as error:  # whatever the user's module raises
        raise ConfigError(f"the model {_name(model)} cannot be used, {problem}: {_told(error)}") from None


def _look(model: nn.Module, x: Tensor, see: Callable[[Any, Tensor], T], training: bool = False, seed: int = 0) -> T:
    """What is seen in fresh copies of both, with random numbers that are the same each time."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        return see(copy.deepcopy(model).train(training), x.clone())


def _noise(sample: Tensor) -> Tensor:
    return torch.randn(sample.shape, generator=torch.Generator().manual_seed(0), dtype=sample.dtype)


def _close(one: Tensor, other: Tensor) -> bool:
    """Equal up to rounding, which the largest score sets the scale for."""
    scale = float(other.abs().max()) if other.isfinite().all() else 1.0
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)


def _name(model: nn.Module) -> str:
    return type(model).__name__


def _unfit(model: nn.Module, problem: str) -> ConfigError:
    return ConfigError(f"the model {_name(model)} {problem}")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
