"""The same loss as chunked.py gives, in plain ops over all the logits at once, for whoever has to see each op."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor

from portwright.losses.tokens import token_cross_entropy

# Where torch itself runs an op of our own; a vendor's compiler knows torch's alone.
_TORCH_DEVICES = ("cpu", "cuda", "meta", "mps", "xpu")
_num_asking = 0  # a plain number, which torch.compile can read


@contextmanager
def whole_logits() -> Iterator[None]:
    """Within, losses are made of torch's own ops, as a vendor's compiler would get them."""
    global _num_asking
    _num_asking += 1
    try:
        yield
    finally:
        _num_asking -= 1


def needs_whole_logits(hidden: Tensor) -> bool:
    return hidden.device.type not in _TORCH_DEVICES or _num_asking > 0


def whole_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    *,
    ignore_index: int,
    label_smoothing: float,
    weights: Tensor | None,
    reduction: str,
) -> Tensor:
    """What chunked_cross_entropy gives for these arguments."""
    logits = F.linear(hidden, weight, bias)
    losses = token_cross_entropy(logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing)
    if weights is not None:
        losses = losses * weights.to(losses.dtype)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    counted = (targets != ignore_index).to(losses.dtype)
    if weights is not None:
        counted = counted * weights.to(losses.dtype)
    return losses.sum() / counted.sum()
