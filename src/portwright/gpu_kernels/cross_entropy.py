"""Cross-entropy of rows of logits, and its gradient written over them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 8192


@triton.jit
def _row_kernel(
    logits_ptr,  # [rows, width], overwritten by the gradient
    targets_ptr,
    coefficients_ptr,
    losses_ptr,
    stride,
    num_words,  # columns beyond it are padding: they count nothing and get the gradient 0
    width,
    smoothing,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = logits_ptr + row * stride
    target = tl.load(targets_ptr + row)
    coefficient = tl.load(coefficients_ptr + row).to(tl.float32)
    largest = float("-inf")
    total = 0.0
    summed = 0.0
    for offset in range(0, num_words, BLOCK):
        columns = offset + tl.arange(0, BLOCK)
        inside = columns < num_words
        x = tl.load(start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        block_largest = tl.maximum(largest, tl.max(x, axis=0))
        total = total * tl.exp(largest - block_largest) + tl.sum(tl.exp(x - block_largest), axis=0)
        largest = block_largest
        summed += tl.sum(tl.where(inside, x, 0.0), axis=0)
    log_total = largest + tl.log(total)
    at_target = tl.load(start + target).to(tl.float32)
    loss = log_total - (1.0 - smoothing) * at_target - smoothing * summed / num_words
    tl.store(losses_ptr + row, loss)
    for offset in range(0, width, BLOCK):
        columns = offset + tl.arange(0, BLOCK)
        x = tl.load(start + columns, mask=columns < num_words, other=float("-inf")).to(tl.float32)
        gradient = tl.exp(x - log_total) - tl.where(columns < num_words, smoothing / num_words, 0.0)
        gradient = tl.where(columns == target, gradient - (1.0 - smoothing), gradient) * coefficient
        tl.store(start + columns, gradient.to(logits_ptr.dtype.element_ty), mask=columns < width)


def losses_and_gradients_(
    logits_nv: Tensor, targets_n: Tensor, coefficients_n: Tensor, num_words: int, label_smoothing: float
) -> Tensor:
    """Gives each row's loss in float32, and turns the logits in place into its gradient, times the row's coefficient.

    Rows may be wider than the vocabulary; targets must lie in it.
    """
    losses_n = torch.empty(logits_nv.shape[0], dtype=torch.float32, device=logits_nv.device)
    _row_kernel[(logits_nv.shape[0],)](
        logits_nv,
        targets_n,
        coefficients_n,
        losses_n,
        logits_nv.stride(0),
        num_words,
        logits_nv.shape[1],
        label_smoothing,
        BLOCK=_BLOCK,
        num_warps=16,
    )
    return losses_n
