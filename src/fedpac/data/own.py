"""The user's own data: arrays in memory, a folder per client, one file with an owner for every sample, or one pool."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpac.data.clients import ClientData, Pool, Samples, Scenario
from fedpac.data.datasets import Dataset
from fedpac.data.images import AS_THEY_ARE, Pictures, image_files
from fedpac.data.untrusted import check_expansion, read_npz, readable
from fedpac.errors import DataError
from fedpac.randomness import numpy_stream

ArrayLike: TypeAlias = "NDArray[Any] | Tensor"
OWN = "own"  # the name of a data set that is the user's
MOST_CLASSES = 100_000
# whole numbers are kept in signed types: uint8 says that a pool holds images, and torch can do little with the others
SIGNED = {
    torch.bool: torch.int8, torch.uint8: torch.int16, torch.uint16: torch.int32, torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}  # fmt: skip
NUMBERS = "To predict numbers, set data.target=number (in Python, classes=0)."
LAYOUT = (
    "Expected one .npz file per client (x_train, y_train, x_test, y_test; or x, y and optionally split), "
    "or one sub-folder per client with a folder of PNG or JPEG images for each class. CSV and Parquet tables need a "
    "schema: fedpac data describe FILES --out schema.toml."
)


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


def from_arrays(
    clients: Sequence[Sequence[ArrayLike]],
    classes: int | None = None,
    names: Sequence[str] | None = None,
) -> Scenario:
    """A scenario from (x_train, y_train, x_test, y_test) of every client, numpy or torch; with validation samples of
    your own, (x_train, y_train, x_test, y_test, x_validation, y_validation).

    x: uint8 images, (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels, which are brought to -1 ... 1; or
    numbers of any other type and shape, taken as they are. A network gets floats in its own precision, and whole
    numbers such as tokens as int64 if it takes them, else as floats.
    y: whole numbers from 0. classes: where left out, the largest label + 1; 0 where y are numbers to predict.

        scenario = from_arrays([(x0, y0, x0_test, y0_test), (x1, y1, x1_test, y1_test)])
    """
    given: object = clients
    if not isinstance(given, Sequence):
        raise DataError(f"clients are a {type(given).__name__}; expected a list with one entry per client.")
    if not (classes is None or (isinstance(classes, int) and 0 <= classes <= MOST_CLASSES)):
        raise DataError(f"classes = {classes!r}; expected the number of classes, or 0 for regression.")
    shares = []
    for i, client in enumerate(clients):
        name = names[i] if names is not None else f"client {i}"
        arrays: object = client
        if not isinstance(arrays, Sequence) or len(arrays) not in (4, 6):
            what = f"{len(arrays)} arrays" if isinstance(arrays, Sequence) else f"a {type(arrays).__name__}"
            raise DataError(
                f"{name}: {what} given, expected 4: x_train, y_train, x_test, y_test; or 6, with x_validation, "
                "y_validation."
            )
        parts = zip(("train", "test", "validation"), client[::2], client[1::2], strict=False)
        shares.append(_joined(name, *(_pair(x, y, f"{name}, {part}", classes == 0) for part, x, y in parts)))
    return _assemble(shares, classes, "own arrays")


def of_newcomer(x: "ArrayLike | None", y: "ArrayLike | None", like: ClientData, classes: int) -> ClientData:
    """Training samples in the form of a participant's, with the same normalisation; none where x is not given."""
    pool = like.train.pool
    none = Samples(pool, torch.empty(0, dtype=torch.int64))
    if x is None or y is None:
        if x is not y:
            raise DataError("the newcomer: pass x and y together, or neither if there are no labels.")
        return ClientData(none, none, like.augment)
    x, y = _pair(x, y, "the newcomer", numbers=not classes)
    if not (pool.x.dtype == torch.uint8 and x.is_floating_point()):  # floats are taken for normalised images
        _same_form(pool.x, x, "the newcomer")
    elif x.shape[1:] != pool.x.shape[1:]:
        raise DataError(f"the newcomer: x has shape {tuple(x.shape)}, samples have {tuple(pool.x.shape[1:])}.")
    if classes and y.max() >= classes:
        raise DataError(f"the newcomer: y has the label {int(y.max())}, allowed are 0 to {classes - 1}.")
    raw = x.dtype == torch.uint8
    own = Pool(x.contiguous(), y, pool.mean if raw else None, pool.std if raw else None)
    return ClientData(Samples(own, torch.arange(len(y))), none, like.augment)


def from_folder(
    path: Path | str,
    seed: int = 0,
    test_share: float = 0.2,
    min_samples: int = 2,
    images: Pictures = AS_THEY_ARE,
    numbers: bool = False,
) -> Scenario:
    """A scenario from a folder that holds one entry per client. Entries are taken in the order of their names.

    Either one file per client,

        hospital-a.npz    with x_train, y_train, x_test, y_test
        hospital-b.npz    with x, y and split (for each sample 'train' or 'test', or 0 or 1 where 1 is test)
        hospital-c.npz    with x, y only: a random `test_share` of the samples is kept for testing

    (arrays as in `from_arrays`), or one sub-folder per client with a folder of PNG or JPEG images for each class,

        hospital-a/healthy/0001.png           split as above; or, split by you:
        hospital-a/train/healthy/0001.png     hospital-a/test/healthy/0002.png

    where a class has the same folder name in every client. Classes are numbered in the order of their names. All images
    have one size, or get one: images=Pictures(size=(64, 64)). Clients with fewer than `min_samples` samples are left
    out. numbers: y are numbers to predict, and no classes.
    """
    path = Path(path).expanduser()
    shares = []
    read, class_names = _read_folder(path, images, numbers)
    for i, held in enumerate(read):
        if isinstance(held, Share):
            shares.append(held)
        elif len(held.y) >= max(2, min_samples):
            shares.append(_split(held, seed, i, test_share))
    classes = 0 if numbers else len(class_names) or None
    scenario = _assemble(_enough(shares, min_samples, path), classes, f"own {path.name}")
    return replace(scenario, class_names=class_names, images=images if class_names else None)


def from_owners(
    path: Path | str, seed: int = 0, test_share: float = 0.2, min_samples: int = 2, numbers: bool = False
) -> Scenario:
    """A natural split: one .npz file with x, y and, for each sample, the number or name of its `writer` (or `owner`).

    Each owner is a client; a random `test_share` of its samples is kept for testing. Owners with fewer than
    `min_samples` samples are left out. If there is a `writer_id`, it names the owners. numbers: y are numbers to
    predict, and no classes.
    """
    path = Path(path).expanduser()
    arrays = read_npz(path)
    key = next((key for key in ("writer", "owner") if key in arrays), None)
    if key is None or not {"x", "y"} <= set(arrays):
        raise DataError(f"{path} has the arrays {', '.join(sorted(arrays))}; expected x, y and writer (or owner).")
    x, y = _pair(arrays["x"], arrays["y"], str(path), numbers)
    owner = arrays[key]
    if owner.shape != (len(y),):
        raise DataError(f"{path}: {key} has shape {owner.shape}, expected one entry for each of {len(y)} samples.")
    if owner.dtype.kind not in "biufU":
        raise DataError(f"{path}: {key} is {owner.dtype}, expected a number or a name for each sample.")
    if owner.dtype.kind == "f" and not np.isfinite(owner).all():
        raise DataError(f"{path}: {key} has infinite or NaN values.")
    ids, code = np.unique(owner, return_inverse=True)
    titles = arrays.get(f"{key}_id") if owner.dtype.kind in "iu" else None
    if titles is not None and not (titles.ndim == 1 and ids[0] >= 0 and ids[-1] < len(titles)):
        raise DataError(
            f"{path}: {key} has the numbers {ids[0]} to {ids[-1]}, but {key}_id has shape {titles.shape}; "
            f"expected one name for each number from 0 on."
        )
    shares = []
    groups = np.split(np.argsort(code, kind="stable"), np.cumsum(np.bincount(code))[:-1])
    for i, (who, index) in enumerate(zip(ids, groups, strict=True)):
        if len(index) >= max(2, min_samples):
            name = str(who if titles is None else titles[who])
            own = torch.from_numpy(index)
            shares.append(_split(Holding(name, x[own], y[own]), seed, i, test_share))
    return _assemble(_enough(shares, min_samples, path), 0 if numbers else None, f"own {path.stem}")


def one_client(
    path: Path,
    seed: int,
    client: int,
    classes: int,
    shape: tuple[int, ...],
    test_share: float = 0.2,
    images: Pictures = AS_THEY_ARE,
) -> ClientData:
    """What one site of a federation holds: an .npz file, a folder with one, or a folder of images for each class.

    All as one client's entry in `from_folder`. A folder is there for every class, also for those of which there are no
    images here: the classes are numbered by their names, and must be the same at every site.
    """
    path = path.expanduser()
    with readable(path, "folder"):
        files = [path] if path.is_file() else sorted(path.glob("*.npz"))
    if len(files) == 1:
        held = _from_npz(files[0], numbers=not classes)
    elif not files and path.is_dir() and _folders(path):
        (held,), _ = _from_images([path], images)
        kinds = {kind.name for part in ([path / "train", path / "test"] if isinstance(held, Share) else [path])
                 for kind in _folders(part)}  # fmt: skip
        if len(kinds) != classes:
            raise DataError(f"{path} has folders of {len(kinds)} classes; expected {classes}, empty ones included.")
    else:
        raise DataError(f"{path} has {len(files)} .npz files. Expected one, or a folder of images for each class.")
    share = held if isinstance(held, Share) else _split(held, seed, client, test_share)
    scenario = _assemble([share], classes, f"own {path.name}")
    if scenario.shape != shape:
        raise DataError(f"{path}: samples have shape {scenario.shape}; this federation's have {shape}.")
    return scenario.clients[0]


def pooled(path: Path, seed: int, test_share: float, images: Pictures = AS_THEY_ARE) -> Dataset:
    """All samples of a file or folder, whoever's they are: one pool to train and one to test on, to be dealt out anew.

    The file is as one client's in `from_folder`, a folder as there. Of samples that are not split, a random
    `test_share` of each class is kept for testing.
    """
    path = path.expanduser()
    read, class_names = ([_from_npz(path)], ()) if path.suffix == ".npz" else _read_folder(path, images)
    _check_alike(read)
    shares = [held for held in read if isinstance(held, Share)]
    if whole := [held for held in read if not isinstance(held, Share)]:
        x, y = torch.cat([held.x for held in whole]), torch.cat([held.y for held in whole])
        by_class = {k: Holding(f"class {k}", x[y == k], y[y == k]) for k in np.unique(y.numpy()).tolist()}
        shares += [_split(held, seed, k, test_share) for k, held in by_class.items()]
    train = _pool([(share.x[: share.train], share.y[: share.train]) for share in shares])
    test = _pool([(share.x[share.train :], share.y[share.train :]) for share in shares])
    if not len(test.y):
        raise DataError(f"{path}: no samples are left for testing; at least one class needs two samples or more.")
    classes = len(class_names) or 1 + int(max(train.y.max(), test.y.max()))
    return Dataset(OWN, train, test, classes, note="", class_names=class_names)


# ---------------------------------------------------------------- reading


def _read_folder(path: Path, images: Pictures, numbers: bool = False) -> tuple[Sequence[Holding], tuple[str, ...]]:
    """Every client's samples, of which those that came split are a Share; and the names of the classes, of images."""
    if not path.is_dir():
        raise DataError(f"{path} is not a folder. {LAYOUT}")
    with readable(path, "folder"):
        visible = sorted(p for p in path.iterdir() if not p.name.startswith("."))
        files, folders = [p for p in visible if p.suffix == ".npz"], [p for p in visible if p.is_dir()]
    if bool(files) == bool(folders):
        raise DataError(f"{path} has {len(files)} .npz files and {len(folders)} sub-folders. {LAYOUT}")
    if files and images != AS_THEY_ARE:
        raise DataError(
            f"{path} has .npz files: their images cannot be resized or converted to grey. Store them in the final form."
        )
    if folders and numbers:
        raise DataError(f"{path} has folders of images, whose names are classes; numbers to predict are in .npz files.")
    return ([_from_npz(file, numbers) for file in files], ()) if files else _from_images(folders, images)


def _from_npz(path: Path, numbers: bool = False) -> Holding:
    arrays, name = read_npz(path), path.stem
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        halves = [
            _pair(arrays[f"x_{part}"], arrays[f"y_{part}"], f"{path}, {part}", numbers) for part in ("train", "test")
        ]
        return _joined(name, *halves)
    if not {"x", "y"} <= set(arrays):
        raise DataError(f"{path} has the arrays {', '.join(sorted(arrays))}. {LAYOUT}")
    x, y = _pair(arrays["x"], arrays["y"], str(path), numbers)
    if "split" not in arrays:
        return Holding(name, x, y)
    split = arrays["split"]
    kind = split.dtype.kind
    train, test = ("train", "test") if kind == "U" else (0, 1)
    if split.shape != (len(y),) or kind not in "Ubiuf" or not ((split == train) | (split == test)).all():
        raise DataError(f"{path}: split must say 'train' or 'test' (or 0 or 1) for each of the {len(y)} samples.")
    chosen = torch.from_numpy(split == test)
    return _joined(name, (x[~chosen], y[~chosen]), (x[chosen], y[chosen]))


def _from_images(folders: list[Path], images: Pictures) -> tuple[list[Holding], tuple[str, ...]]:
    split = {folder: {"train", "test"} == {p.name for p in _folders(folder)} for folder in folders}
    parts = {folder: [folder / "train", folder / "test"] if split[folder] else [folder] for folder in folders}
    kinds = sorted({kind.name for some in parts.values() for part in some for kind in _folders(part)})
    for one, other in itertools.combinations(kinds, 2):
        if one.casefold() == other.casefold():
            raise DataError(f"the class folders '{one}' and '{other}' differ in case only; give them one name.")
    number = {kind: k for k, kind in enumerate(kinds)}
    read = {part: _images(part, number, images) for some in parts.values() for part in some}
    channels = max(x.shape[1] for x, _ in read.values())  # grey images among coloured ones become coloured
    result: list[Holding] = []
    for folder, some in parts.items():
        pairs = [(x.expand(-1, channels, -1, -1), y) for x, y in (read[part] for part in some)]
        result.append(_joined(folder.name, *pairs) if len(pairs) == 2 else Holding(folder.name, *pairs[0]))
    return result, tuple(kinds)


def _folders(path: Path) -> list[Path]:
    with readable(path, "folder"):
        return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(part: Path, number: Mapping[str, int], pictures: Pictures) -> tuple[Tensor, Tensor]:
    with readable(part, "folder"):
        files = [file for kind in _folders(part) for file in image_files(kind)]
    if not files:
        raise DataError(f"{part} has no PNG or JPEG images in class folders. {LAYOUT}")
    images: list[NDArray[np.uint8]] = []
    packed = unpacked = 0
    for file in files:
        images.append(pictures.read(file))
        if images[-1].shape[:2] != images[0].shape[:2]:
            (h, w), (height, width) = images[-1].shape[:2], images[0].shape[:2]
            raise DataError(
                f"{file} is {w} x {h} pixels, the images before it are {width} x {height}; resize all, such as with "
                "data.image_size=64."
            )
        packed, unpacked = packed + file.stat().st_size, unpacked + images[-1].nbytes
        check_expansion(part, packed, unpacked)
    channels = max(image.shape[2] for image in images)
    x = np.stack([np.broadcast_to(image, (*image.shape[:2], channels)) for image in images]).transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(x)), torch.tensor([number[file.parent.name] for file in files])


# ---------------------------------------------------------------- checking and joining


def _pair(x: ArrayLike, y: ArrayLike, who: str, numbers: bool = False) -> tuple[Tensor, Tensor]:
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


def _joined(
    name: str, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], *more: tuple[Tensor, Tensor]
) -> Share:
    """more: the validation samples, if there are any"""
    for what, (_, y) in zip(("training", "test", "validation"), (train, test, *more), strict=False):
        if not len(y):
            raise DataError(f"{name}: there are no {what} samples.")
    parts = [train, test, *more]
    for x, _ in parts:
        _same_form(train[0], x, name)
    x, y = (torch.cat([part[at] for part in parts]) for at in (0, 1))
    return Share(name, x, y, len(train[1]), sum(len(y) for _, y in more))


def _split(held: Holding, seed: int, owner: int, test_share: float) -> Share:
    """Of two samples or more, at least one to train and one to test on; a single one is to train on."""
    total = len(held.y)
    order = torch.from_numpy(numpy_stream(seed, "own test split", client=owner).permutation(total))
    test = min(max(1, round(test_share * total)), total - 1)
    return Share(held.name, held.x[order], held.y[order], total - test)


def _enough(shares: list[Share], min_samples: int, path: Path) -> list[Share]:
    kept = [share for share in shares if len(share.y) >= min_samples]
    if not kept:
        raise DataError(f"{path}: no client has {min_samples} samples or more.")
    return kept


def _check_alike(holdings: Sequence[Holding]) -> None:
    for held in holdings:
        _same_form(holdings[0].x, held.x, held.name)


def _same_form(a: Tensor, b: Tensor, who: str) -> None:
    """Numbers of different types may meet in a pool, but not numbers and images."""
    if (a.dtype == torch.uint8) != (b.dtype == torch.uint8) or a.shape[1:] != b.shape[1:]:
        raise DataError(
            f"{who}: samples are {b.dtype} of shape {tuple(b.shape[1:])}, "
            f"the previous ones are {a.dtype} of shape {tuple(a.shape[1:])}; all must match."
        )


def _assemble(shares: list[Share], classes: int | None, name: str) -> Scenario:
    """All samples in one pool; a client's parts are two ranges of it."""
    if not shares:
        raise DataError("there are no clients.")
    _check_alike(shares)
    for share in shares:
        if classes and share.y.max() >= classes:
            raise DataError(f"{share.name}: y has the label {int(share.y.max())}, allowed are 0 to {classes - 1}.")
    pool = _pool([(share.x, share.y) for share in shares])
    clients, start = [], 0
    for share in shares:
        end = start + len(share.y)
        edges = (start, start + share.train, end - share.validation, end)
        train, test, held_out = (Samples(pool, torch.arange(a, b)) for a, b in itertools.pairwise(edges))
        clients.append(ClientData(train, test, name=share.name, validation=held_out if share.validation else None))
        start = end
    held = int(pool.y.max()) + 1 if classes is None else classes
    return Scenario(clients, held, tuple(pool.x.shape[1:]), name)


def _pool(pairs: Sequence[tuple[Tensor, Tensor]]) -> Pool:
    x, y = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    half = (0.5,) * x.shape[1] if x.dtype == torch.uint8 else None
    return Pool(x, y, half, half)
