"""Cross-entropy of single tokens, in float32 or wider whatever the type of the logits.

Shapes: n tokens, v words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from portwright.errors import UserError

_CHUNK_ELEMENTS = 1 << 25  # logits of a chunk: 128 MiB in float32


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def chunk_length(vocab_size: int, device: torch.device) -> int:
    """Tokens in a chunk, whose logits take about 128 MiB in float32, or eight times that on a GPU, which needs large products."""
    return max(64, _CHUNK_ELEMENTS * (8 if device.type == "cuda" else 1) // vocab_size)


def chunks_of(num_tokens: int, length: int) -> Iterator[slice]:
    """Slices of `length` tokens, the last one shorter."""
    return (slice(start, min(start + length, num_tokens)) for start in range(0, num_tokens, length))


def losses_of(log_probs_nv: Tensor, targets_n: Tensor, label_smoothing: float) -> Tensor:
    """Cross-entropy of each row of log-probabilities against its target."""
    losses = -log_probs_nv.gather(1, targets_n.unsqueeze(1)).squeeze(1)
    if label_smoothing:
        losses = (1 - label_smoothing) * losses - label_smoothing * log_probs_nv.mean(dim=1)
    return losses


def logit_gradients_(
    log_probs_nv: Tensor, targets_n: Tensor, coefficients_n: Tensor, label_smoothing: float
) -> Tensor:
    """Turns log-probabilities, in place, into the gradient of the losses, each times its coefficient."""
    gradients = log_probs_nv.exp_()
    if label_smoothing:
        gradients.sub_(label_smoothing / gradients.shape[1])
    ones = torch.full_like(targets_n, label_smoothing - 1, dtype=gradients.dtype)
    gradients.scatter_add_(1, targets_n.unsqueeze(1), ones.unsqueeze(1))
    return gradients.mul_(coefficients_n.unsqueeze(1))


def check_targets(targets: Tensor, vocab_size: int, ignore_index: int) -> None:
    """Refuses targets outside the vocabulary; only on the CPU, where reading them needs no synchronisation."""
    if targets.device.type != "cpu":
        return
    wrong = (targets != ignore_index) & ((targets < 0) | (targets >= vocab_size))
    if bool(wrong.any()):
        first = int(targets[wrong][0])
        raise UserError(
            f"Target {first} is outside a vocabulary of {vocab_size}.",
            f"Give targets from 0 to {vocab_size - 1}, or {ignore_index} for tokens that do not count.",
        )


def check_label_smoothing(label_smoothing: float) -> None:
    """Refuses a value outside of the range of a share."""
    if not 0 <= label_smoothing <= 1:
        raise UserError(f"label_smoothing is {label_smoothing}.", "Give a number from 0 to 1.")


def split_ignored(targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Gives which targets count, and targets in which the ignored ones are valid indices."""
    counted = targets != ignore_index
    return counted, targets.where(counted, 0)


class _HalfLosses(torch.autograd.Function):
    """Losses from half-precision logits, widened a chunk at a time in both directions."""

    @staticmethod
    def forward(
        ctx: Any, logits_nv: Tensor, targets_n: Tensor, ignore_index: int, label_smoothing: float
    ) -> Tensor:
        ctx.save_for_backward(logits_nv, targets_n)
        ctx.ignore_index, ctx.label_smoothing = ignore_index, label_smoothing
        counted, safe = split_ignored(targets_n, ignore_index)
        losses_n = torch.empty_like(targets_n, dtype=torch.float32)
        for rows in chunks_of(logits_nv.shape[0], chunk_length(logits_nv.shape[1], logits_nv.device)):
            log_probs = F.log_softmax(logits_nv[rows], dim=-1, dtype=torch.float32)
            losses_n[rows] = losses_of(log_probs, safe[rows], label_smoothing)
        return losses_n.where(counted, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_losses_n: Tensor) -> tuple[Tensor | None, ...]:
        logits_nv, targets_n = ctx.saved_tensors
        counted, safe = split_ignored(targets_n, ctx.ignore_index)
        coefficients = grad_losses_n.where(counted, 0)
        gradients_nv = torch.empty_like(logits_nv)
        for rows in chunks_of(logits_nv.shape[0], chunk_length(logits_nv.shape[1], logits_nv.device)):
            log_probs = F.log_softmax(logits_nv[rows], dim=-1, dtype=torch.float32)
            gradients_nv[rows] = logit_gradients_(
                log_probs, safe[rows], coefficients[rows], ctx.label_smoothing
            )
        return gradients_nv, None, None, None


def token_cross_entropy(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Tensor:
    """The cross-entropy of each token in float32 or wider, in the shape of the targets.

    It is F.cross_entropy of the widened logits with no reduction; half-precision logits are widened a chunk at a
    time, except under a compiler, which fuses the widening anyway.
    """
    check_label_smoothing(label_smoothing)
    if logits.dim() < 1 or logits.shape[:-1] != targets.shape:
        raise UserError(
            f"Logits have the shape {tuple(logits.shape)} and targets {tuple(targets.shape)}.",
            "Give one target for each row of logits.",
        )
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise UserError(f"Targets are {targets.dtype}.", "Give integers.")
    logits_nv, targets_n = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1).long()
    try:
        losses = _widened_losses(logits_nv, targets_n, ignore_index, label_smoothing)
    except (IndexError, RuntimeError):
        check_targets(targets_n, logits.shape[-1], ignore_index)  # only now: reading values stops tracing
        raise
    return losses.reshape(targets.shape)


def _widened_losses(
    logits_nv: Tensor, targets_n: Tensor, ignore_index: int, label_smoothing: float
) -> Tensor:
    if logits_nv.dtype in (torch.float16, torch.bfloat16) and not torch.compiler.is_compiling():
        return _HalfLosses.apply(  # type: ignore[no-untyped-call]
            logits_nv, targets_n, ignore_index, label_smoothing
        )
    return F.cross_entropy(
        logits_nv.to(wide_type(logits_nv.dtype)),
        targets_n,
        ignore_index=ignore_index,
        reduction="none",
        label_smoothing=label_smoothing,
    )
