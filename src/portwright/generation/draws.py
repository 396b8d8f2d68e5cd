"""Random draws of sampling: uniform numbers that depend only on seed, row and step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_RESOLUTION = 2.0**32  # coarse enough that rounding in a sum of probabilities changes no draw


def draw_uniforms(
    seed: int, num_rows: int, num_steps: int, device: torch.device, first_row: int = 0
) -> Tensor:
    """Numbers in [0, 1) of shape [steps, rows]; a row's numbers do not depend on the other rows."""
    drawn = np.empty((num_rows, num_steps))
    for row in range(num_rows):
        # numpy's counter-based generator, so that neither torch's generators nor the device matter.
        key = np.array([seed, first_row + row], dtype=np.uint64)
        drawn[row] = np.random.Generator(np.random.Philox(key=key)).random(num_steps)
    return torch.from_numpy(np.floor(drawn.T * _RESOLUTION) / _RESOLUTION).to(device)


def choose(scores: Tensor, uniforms: Tensor) -> Tensor:
    """One token a row with the probabilities softmax(scores), where its uniform number falls."""
    up_to = scores.softmax(dim=-1).double().cumsum(dim=-1)
    # The first token whose cumulated probability exceeds the draw: never one of probability 0.
    point = uniforms[:, None].to(up_to.dtype) * up_to[:, -1:]
    return torch.searchsorted(up_to, point, right=True).squeeze(1).clamp_(max=scores.shape[1] - 1)
