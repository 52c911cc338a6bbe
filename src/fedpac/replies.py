"""What a client's reply must look like before the server merges it.

A method describes its replies once (`Method.replies`): names, shapes, dtypes and ranges. A reply that does not fit is
refused with the client's name and the reason, and the round goes on without it. The bounds are wide: they keep out what
is broken or absurd, not what is cleverly wrong.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf, isfinite
from typing import TypeAlias

import torch
from torch import Tensor

from fedpac.message import Message, Part, Payload, Weights

MOST_SAMPLES = 10_000_000  # that a client may claim to have
EXCESS = 1e3  # how many times larger than usual a reply may be: honest ones stay within 10
EXCESS_OF_MEANS = 1e5  # where it follows the data, which one client may have normalised and another not
HUGE = 1e30  # squares of it are still numbers
SMALL = 1.0  # norms below it are alike: what is nearly zero at one client need not be so at another


@dataclass(frozen=True)
class NumberLike:
    low: float = -inf
    high: float = inf
    whole: bool = False


SAMPLES = NumberLike(1, MOST_SAMPLES, whole=True)


@dataclass(frozen=True, eq=False)
class TensorLike:
    """Finite values of this dtype and shape (None: any length), between `low` and `high`.

    equal      these very values
    sum_is     the name of a number in the same reply that they add up to
    scale      the norm that the server would expect, 0 if it has no idea; None: any size will do
    excess     how many times larger the part may be, all its tensors that have a scale taken together
    moment     a matrix that could be a covariance: symmetric, with no negative eigenvalue
    """

    dtype: torch.dtype
    shape: tuple[int | None, ...]
    low: float = -inf
    high: float = inf
    equal: Tensor | None = None
    sum_is: str | None = None
    scale: float | None = None
    excess: float = EXCESS
    moment: bool = False


Expected: TypeAlias = NumberLike | TensorLike | Mapping[str, TensorLike]
Description: TypeAlias = Mapping[str, Expected]


def like(weights: Weights, buffers: Collection[str] = ()) -> dict[str, TensorLike]:
    """Weights of these names, shapes and dtypes, and not a thousand times larger as a whole.

    Buffers may have any size: they follow the data and not the model. A running variance grows with the square of the
    inputs, and stays where it was at a client with a single sample.
    """
    if isinstance(weights, Payload):  # how large they are, nobody can tell
        return {name: TensorLike(dtype, shape) for name, (dtype, shape) in weights.form().items()}
    return {
        name: _buffer_like(name, tensor) if name in buffers else tensor_like(tensor) for name, tensor in weights.items()
    }


def class_counts(classes: int, of: str | None = None) -> TensorLike:
    """Samples of each class; `of` names the number that they add up to."""
    return TensorLike(torch.int64, (classes,), 0, MOST_SAMPLES, sum_is=of)


def class_means(classes: int, features: int | None, dtype: torch.dtype, known: Tensor | None = None) -> TensorLike:
    """Mean features of each class; `known` are the means of earlier rounds."""
    scale = 0.0 if known is None else norm(known)
    return TensorLike(dtype, (classes, features), -HUGE, HUGE, scale=scale, excess=EXCESS_OF_MEANS)


def tensor_like(tensor: Tensor, scale: float | None = None) -> TensorLike:
    usual = None
    if tensor.is_floating_point():
        usual = norm(tensor) if scale is None else scale
    return TensorLike(tensor.dtype, tuple(tensor.shape), scale=usual)


def _buffer_like(name: str, tensor: Tensor) -> TensorLike:
    if not tensor.is_floating_point():
        return tensor_like(tensor)
    low = 0.0 if name.endswith("running_var") else -HUGE  # its root is taken
    return TensorLike(tensor.dtype, tuple(tensor.shape), low, HUGE)


def norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) if tensor.numel() else 0.0


def accepted(
    replies: Mapping[int, Message], descriptions: Mapping[int, Description | None]
) -> tuple[dict[int, Message], dict[int, str]]:
    """The replies that fit, in client order, and why the others do not."""
    refused: dict[int, str] = {}
    norms: dict[int, dict[str, float]] = {}
    for client, up in replies.items():
        norms[client] = {}
        description = descriptions[client]
        problem = _misfit(up, description, norms[client]) if description is not None else _not_finite(up)
        if problem:
            refused[client] = f"client {client}: {problem}"
    for client, problem in _other_keys({i: up for i, up in replies.items() if i not in refused}).items():
        refused[client] = f"client {client}: {problem}"
    fitting = [client for client in replies if client not in refused]
    for client, problem in _too_large(fitting, norms, descriptions).items():
        refused[client] = f"client {client}: {problem}"
    return {client: replies[client] for client in fitting if client not in refused}, refused


def _other_keys(replies: Mapping[int, Message]) -> dict[int, str]:
    """Who encrypted with another key than most: what they sent cannot be added to the others'."""
    keys = {i: {part.key for part in up.values() if isinstance(part, Payload)} for i, up in replies.items()}
    counted = Counter(key for used in keys.values() for key in used)
    if len(counted) < 2:
        return {}
    usual = counted.most_common(1)[0][0]
    return {
        i: "it is not encrypted with the same key as the other replies" for i, used in keys.items() if used != {usual}
    }


def _misfit(up: Message, description: Description, norms: dict[str, float]) -> str | None:
    """What is wrong with the reply, if anything; the norms of parts whose size matters are left in `norms`."""
    if missing := description.keys() - up.keys():
        return f"{_listed(missing)} is missing from the reply, which has {_listed(up)}"
    if surplus := up.keys() - description.keys():
        return f"{_listed(surplus)} is unexpected; a reply has {_listed(description)}"
    for name, expected in description.items():
        part = up[name]
        if isinstance(expected, NumberLike):
            problem = _number(part, expected)
        elif isinstance(expected, TensorLike):
            problem = _tensor(name, part, expected, up, norms)
        else:
            problem = _group(name, part, expected, up, norms)
        if problem:
            return f"'{name}' {problem}"
    return None


def _number(part: Part, expected: NumberLike) -> str | None:
    if not isinstance(part, float):
        return f"is {_kind(part)}, not a number"
    if not expected.low <= part <= expected.high or (expected.whole and not part.is_integer()):  # NaN is in no range
        whole = "a whole number " if expected.whole else ""
        return f"is {part:g}; expected {whole}between {expected.low:g} and {expected.high:g}"
    return None


def _group(
    name: str, part: Part, expected: Mapping[str, TensorLike], up: Message, norms: dict[str, float]
) -> str | None:
    if not isinstance(part, dict | Payload):
        return f"is {_kind(part)}, not a set of weights"
    form = part.form() if isinstance(part, Payload) else part
    if form.keys() != expected.keys():
        return f"holds {_listed(form)}; expected {_listed(expected)}"
    if isinstance(part, Payload):  # what it holds cannot be seen, only what it says it is
        for key, (dtype, shape) in part.form().items():
            if problem := _misshapen(dtype, shape, expected[key]):
                return f"at '{key}' {problem}"
        return None
    for key, one in expected.items():
        if problem := _tensor(name, part[key], one, up, norms):
            return f"at '{key}' {problem}"
    return None


def _tensor(name: str, part: Part, expected: TensorLike, up: Message, norms: dict[str, float]) -> str | None:
    if not isinstance(part, Tensor):
        return f"is {_kind(part)}, not a tensor"
    if problem := _misshapen(part.dtype, tuple(part.shape), expected):
        return problem
    if part.layout != torch.strided:
        return f"is {str(part.layout).removeprefix('torch.')}; expected a plain tensor"
    if part.is_floating_point():
        size = norm(part)
        if not isfinite(size):
            return "has infinite or NaN values"
        if expected.scale is not None:
            norms[name] = hypot(norms.get(name, 0.0), size)
    bounded = (expected.low, expected.high) != (-inf, inf)
    if bounded and part.numel() and not expected.low <= float(part.min()) <= float(part.max()) <= expected.high:
        return f"has values outside {expected.low:g} to {expected.high:g}"
    if expected.moment and not _is_moment(part):
        return "is not a covariance matrix: it must be symmetric, without negative eigenvalues"
    if expected.equal is not None and not torch.equal(part, expected.equal):
        return f"is {part.tolist()}; expected {expected.equal.tolist()}"
    if expected.sum_is is not None and float(part.sum()) != up[expected.sum_is]:
        return f"adds up to {float(part.sum()):g}, but '{expected.sum_is}' is {up[expected.sum_is]}"
    return None


def _misshapen(dtype: torch.dtype, shape: tuple[int, ...], expected: TensorLike) -> str | None:
    fits = len(shape) == len(expected.shape)
    fits = fits and all(wanted in (None, size) for size, wanted in zip(shape, expected.shape, strict=True))
    if dtype == expected.dtype and fits:
        return None
    return f"is {_form(dtype, shape)}; expected {_form(expected.dtype, expected.shape)}"


def _is_moment(matrix: Tensor) -> bool:
    """Up to rounding."""
    slack = 1e-6 * float(matrix.diagonal().abs().sum()) + 1e-30
    symmetric = bool((matrix - matrix.T).abs().max() <= slack) if matrix.numel() else True
    raised = matrix + slack * torch.eye(len(matrix), dtype=matrix.dtype)
    return symmetric and int(torch.linalg.cholesky_ex(raised)[1]) == 0


def _too_large(
    clients: Sequence[int], norms: Mapping[int, Mapping[str, float]], descriptions: Mapping[int, Description | None]
) -> dict[int, str]:
    """Whose tensors are far larger than the server expects and than those of most others."""
    problems: dict[int, str] = {}
    for client in clients:
        for name, own in norms[client].items():
            scale, excess = _size((descriptions[client] or {})[name])
            usual = max(SMALL, scale)
            if own <= excess * usual:
                continue  # as are nearly all, so that nobody looks at the others for them
            others = sorted(filter(None, (norms[other].get(name) for other in clients if other != client)))
            if others:
                usual = max(usual, others[(len(others) - 1) // 2])
            if own > excess * usual and (others or scale):  # else there is nothing to compare it with
                problems[client] = f"'{name}' has norm {own:.3g}; typical is {usual:.3g} (has its training diverged?)"
                break
    return problems


def _size(expected: Expected) -> tuple[float, float]:
    """The norm that the server expects of a part, and how many times larger it may be."""
    assert not isinstance(expected, NumberLike)
    tensors = [expected] if isinstance(expected, TensorLike) else expected.values()
    sized = [one for one in tensors if one.scale is not None]
    return hypot(*(one.scale or 0.0 for one in sized)), min(one.excess for one in sized)


def _not_finite(up: Message) -> str | None:
    tensors, numbers, _ = up.flat()
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided:
            return f"'{name}' is {str(tensor.layout).removeprefix('torch.')}; expected a plain tensor"
        if tensor.is_floating_point() and not isfinite(norm(tensor)):
            return f"'{name}' has infinite or NaN values"
    wrong = [name for name, number in numbers.items() if number != number]
    return f"'{wrong[0]}' is not a number" if wrong else None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "nothing"


def _kind(part: Part) -> str:
    if isinstance(part, Payload):
        return "encrypted weights"
    return "a set of weights" if isinstance(part, dict) else "a tensor" if isinstance(part, Tensor) else "a number"


def _form(dtype: torch.dtype, shape: Sequence[int | None]) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"{str(dtype).removeprefix('torch.')} of shape ({sizes})"
