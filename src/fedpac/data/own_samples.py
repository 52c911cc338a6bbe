"""The user's own samples: checked, split, and joined into the one pool of a scenario."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpac.data.clients import ClientData, Pool, Samples, Scenario
from fedpac.errors import DataError
from fedpac.randomness import numpy_stream

ArrayLike: TypeAlias = "NDArray[Any] | Tensor"
MOST_CLASSES = 100_000
# whole numbers are kept in signed types: uint8 says that a pool holds images, and torch can do little with the others
SIGNED = {
    torch.bool: torch.int8, torch.uint8: torch.int16, torch.uint16: torch.int32, torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}  # fmt: skip
NUMBERS = "To predict numbers, set data.target=number (in Python, classes=0)."


@dataclass(frozen=True)
class Holding:
    """One owner's samples, as they were read."""

    name: str
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Share(Holding):
    """The same, split: the first `train` samples are for training, then those for testing, the last for validation."""

    train: int
    validation: int = 0


def pair(x: ArrayLike, y: ArrayLike, who: str, numbers: bool = False) -> tuple[Tensor, Tensor]:
    """Tensors in the form a pool holds, or an error that says whose data are wrong and how.

    numbers   whether y are numbers to predict, and no classes
    """
    try:
        x, y = torch.as_tensor(x), torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{who}: expected numbers in x and y ({error}).") from None
    if x.is_complex():
        raise DataError(f"{who}: x has complex numbers; expected bytes or real numbers.")
    if (y.is_floating_point() and not numbers) or y.is_complex() or y.dim() != 1:
        what = "number" if numbers else "whole number"
        hint = "" if numbers or y.dim() != 1 else f" {NUMBERS}"
        raise DataError(f"{who}: y is {y.dtype} of shape {tuple(y.shape)}, expected one {what} per sample.{hint}")
    if x.dim() < 2 or len(x) != len(y):
        raise DataError(
            f"{who}: x has shape {tuple(x.shape)}, expected {len(y)} samples, one per label, along the first axis."
        )
    if not len(y) or not x[0].numel():
        raise DataError(f"{who}: there are no samples." if not len(y) else f"{who}: the samples of x are empty.")
    if numbers:
        y = y if y.dtype == torch.float64 else y.float()
        if not y.isfinite().all():
            raise DataError(f"{who}: y has infinite or NaN values.")
        return _samples(x, who), y
    y = y.long()
    if y.min() < 0:
        raise DataError(f"{who}: y has the label {int(y.min())}; labels start at 0.")
    if y.max() >= MOST_CLASSES:
        raise DataError(f"{who}: y has the label {int(y.max())}; expected classes numbered 0, 1, 2, ... without gaps.")
    return _samples(x, who), y


def _samples(x: Tensor, who: str) -> Tensor:
    """x in one of the three forms that a pool holds: uint8 images, whole numbers, floats."""
    if x.dtype == torch.uint8 and x.dim() == 3:
        return x.unsqueeze(1)
    if x.dtype == torch.uint8 and x.dim() == 4:
        x = x if x.shape[1] in (1, 3) else x.permute(0, 3, 1, 2)
        if x.shape[1] not in (1, 3):
            raise DataError(f"{who}: images must have 1 or 3 channels, first or last; x has shape {tuple(x.shape)}.")
        return x
    if x.is_floating_point():
        if not x.float().isfinite().all():  # the precision that most networks have
            raise DataError(f"{who}: x has infinite or NaN values.")
        return x
    whole = x.to(SIGNED.get(x.dtype, x.dtype))
    if x.dtype == torch.uint64 and (whole < 0).any():
        raise DataError(f"{who}: x has whole numbers beyond 2^63.")
    return whole


def joined(name: str, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], *more: tuple[Tensor, Tensor]) -> Share:
    """more: the validation samples, if there are any"""
    for what, (_, y) in zip(("training", "test", "validation"), (train, test, *more), strict=False):
        if not len(y):
            raise DataError(f"{name}: there are no {what} samples.")
    parts = [train, test, *more]
    for x, _ in parts:
        same_form(train[0], x, name)
    x, y = (torch.cat([part[at] for part in parts]) for at in (0, 1))
    return Share(name, x, y, len(train[1]), sum(len(y) for _, y in more))


def split(held: Holding, seed: int, owner: int, test_share: float) -> Share:
    """Of two samples or more, at least one to train and one to test on; a single one is to train on."""
    total = len(held.y)
    order = torch.from_numpy(numpy_stream(seed, "own test split", client=owner).permutation(total))
    test = min(max(1, round(test_share * total)), total - 1)
    return Share(held.name, held.x[order], held.y[order], total - test)


def check_alike(holdings: Sequence[Holding]) -> None:
    for held in holdings:
        same_form(holdings[0].x, held.x, held.name)


def same_form(a: Tensor, b: Tensor, who: str) -> None:
    """Numbers of different types may meet in a pool, but not numbers and images."""
    if (a.dtype == torch.uint8) != (b.dtype == torch.uint8) or a.shape[1:] != b.shape[1:]:
        raise DataError(
            f"{who}: samples are {b.dtype} of shape {tuple(b.shape[1:])}, "
            f"the previous ones are {a.dtype} of shape {tuple(a.shape[1:])}; all must match."
        )


def assemble(shares: list[Share], classes: int | None, name: str) -> Scenario:
    """All samples in one pool; a client's parts are two ranges of it."""
    if not shares:
        raise DataError("there are no clients.")
    check_alike(shares)
    for share in shares:
        if classes and share.y.max() >= classes:
            raise DataError(f"{share.name}: y has the label {int(share.y.max())}, allowed are 0 to {classes - 1}.")
    pool = pool_of([(share.x, share.y) for share in shares])
    clients, start = [], 0
    for share in shares:
        end = start + len(share.y)
        edges = (start, start + share.train, end - share.validation, end)
        train, test, held_out = (Samples(pool, torch.arange(a, b)) for a, b in itertools.pairwise(edges))
        clients.append(ClientData(train, test, name=share.name, validation=held_out if share.validation else None))
        start = end
    held = int(pool.y.max()) + 1 if classes is None else classes
    return Scenario(clients, held, tuple(pool.x.shape[1:]), name)


def pool_of(pairs: Sequence[tuple[Tensor, Tensor]]) -> Pool:
    x, y = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    half = (0.5,) * x.shape[1] if x.dtype == torch.uint8 else None
    return Pool(x, y, half, half)
