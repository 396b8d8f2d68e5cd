"""The cross-entropy of an output layer, in the form that the device of the moment takes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from portwright.losses import chunked_cross_entropy, token_cross_entropy

_CHUNKING_DEVICES = ("cpu", "cuda", "hpu")


def head_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, weights: Tensor
) -> Tensor:
    """The sum of weights times cross-entropies of F.linear(hidden, weight, bias), no more logits held than a chunk.

    A front end that traces a step for another target knows no custom operators, so it sees the plain ones.
    """
    if takes_custom_ops(hidden):
        return chunked_cross_entropy(hidden, weight, targets, bias, weights=weights, reduction="sum")
    losses = token_cross_entropy(F.linear(hidden, weight, bias), targets)
    return (losses * weights.to(losses.dtype)).sum()


def takes_custom_ops(tensor: Tensor) -> bool:
    """Whether the tensor is computed here and now, or compiled by torch."""
    if tensor.device.type not in _CHUNKING_DEVICES:
        return False
    return torch.compiler.is_compiling() or _get_current_dispatch_mode() is None
