"""The memory format of images and ops on their size, in forms that are fast in torch and legal on other targets."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from portwright.layers.legal import interpolate
from portwright.layers.plain_ops import is_eager


def put_channels_last(images: Tensor) -> Tensor:
    """Puts images into the memory format in which convolutions are fast; torch keeps it from layer to layer.

    With one channel both formats have the same bytes, and torch tells them apart by a stride that is never used: we set it.
    """
    if not is_eager(images):
        return images
    if images.shape[1] == 1:
        _, _, height, width = images.shape
        return images.contiguous().as_strided(images.shape, (height * width, 1, width, 1))
    return images.contiguous(memory_format=torch.channels_last)


def double(x: Tensor, mode: str) -> Tensor:
    """F.interpolate(x, scale_factor=2, mode=mode) for modes nearest and bilinear, also where a target has no such kernel.

    There the nearest neighbour is the legal form's. Bilinear would be products with matrices in its legal form; with a
    factor of two each result is three quarters of a pixel plus a quarter of its neighbour, which slices and sums make.
    """
    if is_eager(x):
        return F.interpolate(x, scale_factor=2, mode=mode)
    if mode == "nearest":
        return interpolate(x, scale_factor=2.0, mode=mode)
    return _double_along(_double_along(x, 2), 3)


def _double_along(x: Tensor, dim: int) -> Tensor:
    size = x.shape[dim]
    before = torch.cat([x.narrow(dim, 0, 1), x.narrow(dim, 0, size - 1)], dim)
    after = torch.cat([x.narrow(dim, 1, size - 1), x.narrow(dim, size - 1, 1)], dim)
    near = 0.75 * x
    pairs = [(near + 0.25 * beside).unsqueeze(dim + 1) for beside in (before, after)]
    return torch.cat(pairs, dim + 1).flatten(dim, dim + 1)


def fit(x: Tensor, height: int, width: int) -> Tensor:
    """Cuts, or pads with zeros, evenly on both sides (an odd row at the end) to a height and width; `x` itself where it fits."""
    down, across = height - x.shape[2], width - x.shape[3]
    if not down and not across:
        return x
    top, left = int(down / 2), int(across / 2)
    if down <= 0 and across <= 0:
        return x[:, :, -top : height - top, -left : width - left]
    return F.pad(x, [left, across - left, top, down - top])
