"""The user's own data: arrays in memory, a folder per client, one file with an owner for every sample, or one pool."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedpac.data.clients import ClientData, Pool, Samples, Scenario
from fedpac.data.datasets import Dataset
from fedpac.data.images import AS_THEY_ARE, Pictures
from fedpac.data.own_files import folders_in, from_images, from_npz, read_folder
from fedpac.data.own_samples import (
    MOST_CLASSES,
    ArrayLike,
    Holding,
    Share,
    assemble,
    check_alike,
    joined,
    pair,
    pool_of,
    same_form,
    split,
)
from fedpac.data.untrusted import read_npz, readable
from fedpac.errors import DataError

OWN = "own"  # the name of a data set that is the user's


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
        shares.append(joined(name, *(pair(x, y, f"{name}, {part}", classes == 0) for part, x, y in parts)))
    return assemble(shares, classes, "own arrays")


def of_newcomer(x: "ArrayLike | None", y: "ArrayLike | None", like: ClientData, classes: int) -> ClientData:
    """Training samples in the form of a participant's, with the same normalisation; none where x is not given."""
    pool = like.train.pool
    none = Samples(pool, torch.empty(0, dtype=torch.int64))
    if x is None or y is None:
        if x is not y:
            raise DataError("the newcomer: pass x and y together, or neither if there are no labels.")
        return ClientData(none, none, like.augment)
    x, y = pair(x, y, "the newcomer", numbers=not classes)
    if not (pool.x.dtype == torch.uint8 and x.is_floating_point()):  # floats are taken for normalised images
        same_form(pool.x, x, "the newcomer")
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
    read, class_names = read_folder(path, images, numbers)
    for i, held in enumerate(read):
        if isinstance(held, Share):
            shares.append(held)
        elif len(held.y) >= max(2, min_samples):
            shares.append(split(held, seed, i, test_share))
    classes = 0 if numbers else len(class_names) or None
    scenario = assemble(_enough(shares, min_samples, path), classes, f"own {path.name}")
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
    x, y = pair(arrays["x"], arrays["y"], str(path), numbers)
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
            shares.append(split(Holding(name, x[own], y[own]), seed, i, test_share))
    return assemble(_enough(shares, min_samples, path), 0 if numbers else None, f"own {path.stem}")


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
        held = from_npz(files[0], numbers=not classes)
    elif not files and path.is_dir() and folders_in(path):
        (held,), _ = from_images([path], images)
        kinds = {kind.name for part in ([path / "train", path / "test"] if isinstance(held, Share) else [path])
                 for kind in folders_in(part)}  # fmt: skip
        if len(kinds) != classes:
            raise DataError(f"{path} has folders of {len(kinds)} classes; expected {classes}, empty ones included.")
    else:
        raise DataError(f"{path} has {len(files)} .npz files. Expected one, or a folder of images for each class.")
    share = held if isinstance(held, Share) else split(held, seed, client, test_share)
    scenario = assemble([share], classes, f"own {path.name}")
    if scenario.shape != shape:
        raise DataError(f"{path}: samples have shape {scenario.shape}; this federation's have {shape}.")
    return scenario.clients[0]


def pooled(path: Path, seed: int, test_share: float, images: Pictures = AS_THEY_ARE) -> Dataset:
    """All samples of a file or folder, whoever's they are: one pool to train and one to test on, to be dealt out anew.

    The file is as one client's in `from_folder`, a folder as there. Of samples that are not split, a random
    `test_share` of each class is kept for testing.
    """
    path = path.expanduser()
    read, class_names = ([from_npz(path)], ()) if path.suffix == ".npz" else read_folder(path, images)
    check_alike(read)
    shares = [held for held in read if isinstance(held, Share)]
    if whole := [held for held in read if not isinstance(held, Share)]:
        x, y = torch.cat([held.x for held in whole]), torch.cat([held.y for held in whole])
        by_class = {k: Holding(f"class {k}", x[y == k], y[y == k]) for k in np.unique(y.numpy()).tolist()}
        shares += [split(held, seed, k, test_share) for k, held in by_class.items()]
    train = pool_of([(share.x[: share.train], share.y[: share.train]) for share in shares])
    test = pool_of([(share.x[share.train :], share.y[share.train :]) for share in shares])
    if not len(test.y):
        raise DataError(f"{path}: no samples are left for testing; at least one class needs two samples or more.")
    classes = len(class_names) or 1 + int(max(train.y.max(), test.y.max()))
    return Dataset(OWN, train, test, classes, note="", class_names=class_names)


def _enough(shares: list[Share], min_samples: int, path: Path) -> list[Share]:
    kept = [share for share in shares if len(share.y) >= min_samples]
    if not kept:
        raise DataError(f"{path}: no client has {min_samples} samples or more.")
    return kept
