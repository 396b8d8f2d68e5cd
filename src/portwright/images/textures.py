"""Generated textures with a defect in each, similar to DAGM 2007: segmentation data without a download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def make_textures(
    num_samples: int, shape: Sequence[int], num_classes: int, seed: int
) -> dict[str, npt.NDArray[Any]]:
    """Makes smooth noise around zero with one ellipse of another grain in each image; each class has its own grain.

    `shape` is height, width, channels. Gives `image` [num_samples, height, width, channels] in float32 and `mask`
    [num_samples, height, width, 1] in uint8.
    """
    random = np.random.default_rng(seed)
    height, width, _ = shape
    rows, columns = np.mgrid[:height, :width]
    images = np.empty((num_samples, *shape), np.float32)
    masks = np.empty((num_samples, height, width, 1), np.uint8)
    for index in range(num_samples):
        kind = int(random.integers(1, num_classes))
        centre = random.uniform(0.25, 0.75, 2) * (height, width)
        radii = random.uniform(0.08, 0.25, 2) * (height, width)
        angle = random.uniform(0, np.pi)
        down, across = rows - centre[0], columns - centre[1]
        u, v = (
            down * np.cos(angle) + across * np.sin(angle),
            across * np.cos(angle) - down * np.sin(angle),
        )
        inside = (u / radii[0]) ** 2 + (v / radii[1]) ** 2 <= 1
        noise = random.normal(size=tuple(shape))
        texture = sum(np.roll(noise, shift, axis) for shift in range(3) for axis in range(2)) / 6
        grain = 0.8 * random.normal(size=tuple(shape)) + kind / 2
        images[index] = np.clip(np.where(inside[..., None], texture + grain, texture), -3, 3) / 3
        masks[index, ..., 0] = np.where(inside, kind, 0)
    return {"image": images, "mask": masks}
