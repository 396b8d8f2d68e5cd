"""Checks and shapes the tensors that a model hands to a metric, without making the host wait for the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portwright.discover import find_targets
from portwright.errors import UserError

# Float64 counts exactly to 2**53 and holds weighted sums too, so one type serves every accumulator.
SUM_DTYPE = torch.float64
# Where such sums cannot be trusted, a metric is counted on the host. Looked up here, since torch.compile cannot follow a discovery.
_NARROW_DEVICES = frozenset(
    kind
    for target in find_targets().values()
    if "no_wide_sums" in target.needs
    for kind in target.device_types
)


def as_tensor(name: str, what: str, received: Any) -> Tensor:
    """A detached tensor, int64 or float64, of what was passed as `what` to metric `name`.

    The wide types are needed for comparing: as bfloat16 class 257 equals class 256, as uint8 -100 equals 156.
    """
    try:
        tensor = received.detach() if isinstance(received, Tensor) else torch.as_tensor(received)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"Metric '{name}' received {what} of type {type(received).__name__}, which is no tensor.",
            f"Pass {what} as a tensor of numbers.",
        ) from error
    if tensor.is_complex():
        raise UserError(
            f"Metric '{name}' received complex {what}.", f"Pass {what} as a tensor of real numbers."
        )
    if tensor.device.type in _NARROW_DEVICES:
        tensor = tensor.cpu()
    return tensor.to(SUM_DTYPE if tensor.is_floating_point() else torch.int64)


def pair_up(name: str, labels: Any, predictions: Any) -> tuple[Tensor, Tensor]:
    """Labels and predictions as two tensors of one shape and device."""
    label = as_tensor(name, "labels", labels)
    prediction = as_tensor(name, "predictions", predictions).to(label.device)
    if label.numel() != prediction.numel():
        raise UserError(
            f"Metric '{name}' received labels of shape {tuple(label.shape)} and predictions of shape "
            f"{tuple(prediction.shape)}.",
            "Pass one prediction per label; of logits, logits.argmax(-1).",
        )
    return label, prediction.reshape(label.shape)


def spread(name: str, weights: Any, like: Tensor) -> Tensor:
    """Weights as float64, one for each element of `like`; none means that each counts once.

    They may have as many elements as `like`, be a single number, or have its rank and broadcast. A lower rank does
    not broadcast: of a square batch nobody could tell whether rows or columns were meant.
    """
    if weights is None:
        return torch.ones(like.shape, dtype=SUM_DTYPE, device=like.device)
    weight = as_tensor(name, "weights", weights).to(device=like.device, dtype=SUM_DTYPE)
    if weight.numel() == like.numel():
        return weight.reshape(like.shape)
    same_rank = weight.dim() == like.dim()
    fits = same_rank and all(w in (1, n) for w, n in zip(weight.shape, like.shape, strict=True))
    if weight.dim() == 0 or fits:
        return weight.expand(like.shape)
    raise UserError(
        f"Metric '{name}' received weights of shape {tuple(weight.shape)} for labels of shape {tuple(like.shape)}.",
        "Pass one weight per label, or a shape of the same rank that broadcasts to it.",
    )
