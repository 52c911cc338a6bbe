"""The user's own files: .npz arrays, and folders of images for each class."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpac.data.images import AS_THEY_ARE, Pictures, image_files
from fedpac.data.own_samples import Holding, joined, pair
from fedpac.data.untrusted import check_expansion, read_npz, readable
from fedpac.errors import DataError

LAYOUT = (
    "Expected one .npz file per client (x_train, y_train, x_test, y_test; or x, y and optionally split), "
    "or one sub-folder per client with a folder of PNG or JPEG images for each class. CSV and Parquet tables need a "
    "schema: fedpac data describe FILES --out schema.toml."
)


def read_folder(path: Path, images: Pictures, numbers: bool = False) -> tuple[Sequence[Holding], tuple[str, ...]]:
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
    return ([from_npz(file, numbers) for file in files], ()) if files else from_images(folders, images)


def from_npz(path: Path, numbers: bool = False) -> Holding:
    arrays, name = read_npz(path), path.stem
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        halves = [
            pair(arrays[f"x_{part}"], arrays[f"y_{part}"], f"{path}, {part}", numbers) for part in ("train", "test")
        ]
        return joined(name, *halves)
    if not {"x", "y"} <= set(arrays):
        raise DataError(f"{path} has the arrays {', '.join(sorted(arrays))}. {LAYOUT}")
    x, y = pair(arrays["x"], arrays["y"], str(path), numbers)
    if "split" not in arrays:
        return Holding(name, x, y)
    split = arrays["split"]
    kind = split.dtype.kind
    train, test = ("train", "test") if kind == "U" else (0, 1)
    if split.shape != (len(y),) or kind not in "Ubiuf" or not ((split == train) | (split == test)).all():
        raise DataError(f"{path}: split must say 'train' or 'test' (or 0 or 1) for each of the {len(y)} samples.")
    chosen = torch.from_numpy(split == test)
    return joined(name, (x[~chosen], y[~chosen]), (x[chosen], y[chosen]))


def from_images(folders: list[Path], images: Pictures) -> tuple[list[Holding], tuple[str, ...]]:
    split = {folder: {"train", "test"} == {p.name for p in folders_in(folder)} for folder in folders}
    parts = {folder: [folder / "train", folder / "test"] if split[folder] else [folder] for folder in folders}
    kinds = sorted({kind.name for some in parts.values() for part in some for kind in folders_in(part)})
    for one, other in itertools.combinations(kinds, 2):
        if one.casefold() == other.casefold():
            raise DataError(f"the class folders '{one}' and '{other}' differ in case only; give them one name.")
    number = {kind: k for k, kind in enumerate(kinds)}
    read = {part: _images(part, number, images) for some in parts.values() for part in some}
    channels = max(x.shape[1] for x, _ in read.values())  # grey images among coloured ones become coloured
    result: list[Holding] = []
    for folder, some in parts.items():
        pairs = [(x.expand(-1, channels, -1, -1), y) for x, y in (read[part] for part in some)]
        result.append(joined(folder.name, *pairs) if len(pairs) == 2 else Holding(folder.name, *pairs[0]))
    return result, tuple(kinds)


def folders_in(path: Path) -> list[Path]:
    with readable(path, "folder"):
        return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(part: Path, number: Mapping[str, int], pictures: Pictures) -> tuple[Tensor, Tensor]:
    with readable(part, "folder"):
        files = [file for kind in folders_in(part) for file in image_files(kind)]
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
