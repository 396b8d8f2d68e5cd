"""sambaflow.samba.utils.dataset.mnist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from portwright.emulate.sambaflow._refusal import not_emulated

_MEAN, _DEVIATION = 0.1307, 0.3081  # of MNIST's training images


def dataset_transform(args: Any = None) -> Callable[[Any], Tensor]:
    """An image of MNIST as a normalised vector of its 784 pixels."""

    def transform(image: Any) -> Tensor:
        pixels = torch.as_tensor(np.asarray(image), dtype=torch.float32) / 255
        return ((pixels - _MEAN) / _DEVIATION).reshape(-1)

    return transform


prepare_dataloader = not_emulated("samba.utils.dataset.mnist.prepare_dataloader")
