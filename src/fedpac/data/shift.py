"""Shifts that make the same picture mean or look different from group to group."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedpac.randomness import numpy_stream


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Images (N, C, H, W) turned counter-clockwise about their centre; what comes in from outside is 0.

    Quarter turns of square images move pixels and change none; other angles interpolate bilinearly.
    """
    quarters, rest = divmod(degrees, 90)
    if rest == 0 and (quarters % 2 == 0 or x.shape[-1] == x.shape[-2]):
        return x if quarters % 4 == 0 else torch.rot90(x, int(quarters), dims=(-2, -1)).contiguous()
    height, width = x.shape[-2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # the grid says where each output pixel comes from, in units of half the width and half the height
    where = torch.tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]], dtype=x.dtype)
    grid = F.affine_grid(where.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def turn_each(x: Tensor, degrees: Tensor) -> Tensor:
    """The same with an angle for every image, always interpolated."""
    height, width = x.shape[-2:]
    angle = torch.deg2rad(degrees).to(x.dtype)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    rows = [torch.stack([cos, -sin * height / width, zero], 1), torch.stack([sin * width / height, cos, zero], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def random_turns(seed: int, client: int, part: str, count: int, most: float) -> Tensor:
    """An angle for each of a client's images, up to `most` degrees either way."""
    drawn = numpy_stream(seed, f"turns of {part} images", client).uniform(-most, most, count)
    return torch.from_numpy(drawn)


def relabelling(seed: int, group: int, classes: int) -> Tensor:
    """Concept shift: the group's own permutation of the labels."""
    order: np.ndarray = numpy_stream(seed, "label shift", client=group).permutation(classes)
    return torch.from_numpy(order)
