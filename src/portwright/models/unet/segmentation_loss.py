"""Cross-entropy of pixels and the Dice loss, in float32 and in ops that static targets take."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def segmentation_loss(logits: Tensor, labels: Tensor, kind: str, ignore_index: int | None = None) -> Tensor:
    """From logits [batch, 1 or classes, height, width] and labels [batch, height, width]: the mean over pixels of the
    cross-entropy (`bce`, `ssce`), one minus the Dice coefficient of the batch's foreground (`dice`), or their sum (`bce_dice`, `ssce_dice`).
    """
    logits = logits.float()
    counted = None if ignore_index is None else labels != ignore_index
    if counted is not None:
        labels = torch.where(counted, labels, torch.zeros_like(labels))
    if kind == "dice":
        return _dice_loss(logits, labels, counted)
    loss = _cross_entropy(logits, labels, counted)
    return loss + _dice_loss(logits, labels, counted) if kind.endswith("dice") else loss


def _cross_entropy(logits: Tensor, labels: Tensor, counted: Tensor | None) -> Tensor:
    # One row for each pixel, a view in channels_last memory.
    rows = logits.permute(0, 2, 3, 1).reshape(-1, logits.shape[1])
    reduction = "mean" if counted is None else "none"
    if logits.shape[1] == 1:
        truth = labels.reshape(-1, 1).float()
        losses = F.binary_cross_entropy_with_logits(rows, truth, reduction=reduction)
    else:
        losses = F.cross_entropy(rows, labels.reshape(-1).long(), reduction=reduction)
    if counted is None:
        return losses
    weights = counted.reshape(losses.shape).to(losses.dtype)
    return (losses * weights).sum() / weights.sum().clamp(min=1.0)


def _dice_loss(logits: Tensor, labels: Tensor, counted: Tensor | None) -> Tensor:
    """One minus twice the overlap over the sum of both, without background; smoothed by one pixel: two empty masks are equal."""
    if logits.shape[1] == 1:
        found, truth = logits.sigmoid(), labels.unsqueeze(1).float()
    else:
        found = logits.softmax(1)[:, 1:]
        truth = torch.stack([(labels == number).float() for number in range(1, logits.shape[1])], 1)
    if counted is not None:
        found = found * counted.unsqueeze(1).float()
        truth = truth * counted.unsqueeze(1).float()
    return 1 - (2 * (found * truth).sum() + 1) / (found.sum() + truth.sum() + 1)
