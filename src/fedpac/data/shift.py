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


def relabelling(seed: int, group: int, classes: int) -> Tensor:
    """Concept shift: the group's own permutation of the labels."""
    order: np.ndarray = numpy_stream(seed, "label shift", client=group).permutation(classes)
    return torch.from_numpy(order)
