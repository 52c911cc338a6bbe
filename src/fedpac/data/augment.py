"""The random crops and flips that the paper trains CIFAR-10 and CINIC-10 with, for a whole batch at once."""

import torch
from torch import Tensor

from fedpac.native.vectors import move

PADDING = 4


def crop_and_flip(
    x: Tensor, generator: torch.Generator, fill: Tensor | None = None, index: Tensor | None = None
) -> Tensor:
    """Each image (N, C, H, W) moved by up to 4 pixels in each direction and mirrored with probability one half.

    fill   one value per channel for the border that comes into view. Zero, the mean colour of normalised images, where
           none is given; `Samples.black()` is what cropping before the normalisation gives.
    index  which of the images; all of them where none is given
    """
    index = torch.arange(len(x), device=x.device) if index is None else index
    n, (channels, height, width) = len(index), x.shape[1:]
    top, left = torch.randint(2 * PADDING + 1, (2, n, 1), generator=generator)
    mirrored = torch.randint(2, (n, 1), generator=generator).bool()
    border = x.new_zeros(channels) if fill is None else fill.to(x)
    moved = move(x, index, PADDING - top.view(n), PADDING - left.view(n), mirrored.view(n), border)
    if moved is not None:
        return moved

    top, left, mirrored = top.to(x.device), left.to(x.device), mirrored.to(x.device)
    wide = (n, channels, height + 2 * PADDING, width + 2 * PADDING)
    padded = border.view(1, -1, 1, 1).expand(wide).contiguous()
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = x.index_select(0, index)
    rows = top + torch.arange(height, device=x.device)
    across = torch.arange(width, device=x.device)
    columns = left + torch.where(mirrored, width - 1 - across, across)
    # one flat position per output pixel, shared by the channels of an image: gather then copies without arithmetic
    where = (rows * wide[3]).unsqueeze(2) + columns.unsqueeze(1)
    picked = padded.flatten(2).gather(2, where.view(n, 1, -1).expand(-1, channels, -1))
    return picked.view(n, channels, height, width)
