"""The output layer and its cross-entropy together, computed chunk by chunk.

The logits of a language model, tokens times vocabulary, are by far its largest tensor. Here only one chunk of them
exists at a time. Where the loss is one number, its gradients are computed in the same pass, since each token's
coefficient is known: no logits are computed twice. Custom operators keep a compiler from undoing this.

Shapes: n tokens, d hidden width, v words of the vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from portwright import gpu_kernels
from portwright.errors import UnsupportedError, UserError, suggest
from portwright.layers.plain_ops import needs_plain_ops
from portwright.losses.tokens import (
    check_label_smoothing,
    check_targets,
    chunk_length,
    chunks_of,
    logit_gradients_,
    losses_of,
    split_ignored,
    token_cross_entropy,
    wide_type,
)

Reduction = Literal["mean", "sum", "none"]
_REDUCTIONS = ("mean", "sum", "none")

_HEAD = "Tensor hidden_nd, Tensor weight_vd, Tensor? bias_v, Tensor targets_n"
_OPTIONS = "int ignore_index, float label_smoothing, int chunk_tokens"


def _log_probs(hidden_nd: Tensor, weight_vd: Tensor, bias_v: Tensor | None) -> Tensor:
    # Logits have the type of the matrices, as an output layer's do.
    logits = F.linear(hidden_nd, weight_vd, bias_v)
    return F.log_softmax(logits, dim=-1, dtype=wide_type(logits.dtype))


@torch.library.custom_op(
    "portwright::head_losses", mutates_args=(), schema=f"({_HEAD}, {_OPTIONS}) -> Tensor"
)
def _head_losses(
    hidden_nd: Tensor,
    weight_vd: Tensor,
    bias_v: Tensor | None,
    targets_n: Tensor,
    ignore_index: int,
    label_smoothing: float,
    chunk_tokens: int,
) -> Tensor:
    check_targets(targets_n, weight_vd.shape[0], ignore_index)
    counted, safe = split_ignored(targets_n, ignore_index)
    losses_n = torch.empty_like(targets_n, dtype=wide_type(hidden_nd.dtype))
    with torch.autocast(hidden_nd.device.type, enabled=False):
        for rows in chunks_of(hidden_nd.shape[0], chunk_tokens):
            log_probs = _log_probs(hidden_nd[rows], weight_vd, bias_v)
            losses_n[rows] = losses_of(log_probs, safe[rows], label_smoothing)
    return losses_n.where(counted, 0)


@torch.library.custom_op(
    "portwright::head_loss_and_gradients",
    mutates_args=(),
    schema=f"(Tensor coefficients_n, {_HEAD}, {_OPTIONS}, bool[] needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _head_loss_and_gradients(
    coefficients_n: Tensor,
    hidden_nd: Tensor,
    weight_vd: Tensor,
    bias_v: Tensor | None,
    targets_n: Tensor,
    ignore_index: int,
    label_smoothing: float,
    chunk_tokens: int,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The sum of the losses times their coefficients, the losses, and the sum's gradients.

    `needs` says which of the gradients of hidden, weight and bias are wanted; the others come back empty.
    """
    check_targets(targets_n, weight_vd.shape[0], ignore_index)
    needs_hidden, needs_weight, needs_bias = needs
    dtype, wide = hidden_nd.dtype, wide_type(hidden_nd.dtype)
    counted, safe = split_ignored(targets_n, ignore_index)
    coefficients = coefficients_n.to(wide).where(counted, 0)
    losses_n = torch.empty_like(coefficients)
    grad_hidden = torch.empty(hidden_nd.shape if needs_hidden else (0,), dtype=dtype, device=hidden_nd.device)
    grad_weight, grad_bias = (
        # Sums over chunks are float32 or wider: a half type would lose precision with every chunk.
        torch.zeros(shape if needed else (0,), dtype=wide, device=hidden_nd.device)
        for shape, needed in ((weight_vd.shape, needs_weight), (weight_vd.shape[:1], needs_bias))
    )
    num_words = weight_vd.shape[0]
    has_kernel = gpu_kernels.serves(hidden_nd) and wide == torch.float32
    if has_kernel:
        weight_vd, bias_v, grad_weight = _widen(weight_vd, bias_v, grad_weight)
    with torch.autocast(hidden_nd.device.type, enabled=False):
        for rows in chunks_of(hidden_nd.shape[0], chunk_tokens):
            if has_kernel:
                from portwright.gpu_kernels.cross_entropy import losses_and_gradients_

                grad_logits = F.linear(hidden_nd[rows], weight_vd, bias_v)
                losses_n[rows] = losses_and_gradients_(
                    grad_logits, safe[rows], coefficients[rows], num_words, label_smoothing
                )
            else:
                log_probs = _log_probs(hidden_nd[rows], weight_vd, bias_v)
                losses_n[rows] = losses_of(log_probs, safe[rows], label_smoothing)
                grad_logits = logit_gradients_(log_probs, safe[rows], coefficients[rows], label_smoothing)
                del log_probs
            if needs_bias:
                grad_bias += grad_logits[:, :num_words].sum(dim=0, dtype=wide)
            grad_logits = grad_logits.to(dtype)
            if needs_hidden:
                torch.mm(grad_logits, weight_vd, out=grad_hidden[rows])
            if needs_weight and dtype == wide:
                grad_weight.addmm_(grad_logits.t(), hidden_nd[rows])
            elif needs_weight:
                grad_weight += grad_logits.t() @ hidden_nd[rows]
    losses_n = losses_n.where(counted, 0)
    loss = (losses_n * coefficients_n).sum()
    return loss, losses_n, grad_hidden, grad_weight[:num_words].to(dtype), grad_bias.to(dtype)


def _widen(
    weight_vd: Tensor, bias_v: Tensor | None, grad_weight: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Adds rows of zeros up to a multiple of 64: a GPU multiplies 50,304 columns much faster than 50,257."""
    missing = -weight_vd.shape[0] % 64
    if not missing:
        return weight_vd, bias_v, grad_weight
    wide_bias = None if bias_v is None else F.pad(bias_v, (0, missing))
    wide_gradient = F.pad(grad_weight, (0, 0, 0, missing)) if grad_weight.dim() == 2 else grad_weight
    return F.pad(weight_vd, (0, 0, 0, missing)), wide_bias, wide_gradient


def _fake_losses(hidden_nd: Tensor, *rest: Any) -> Tensor:
    return hidden_nd.new_empty(hidden_nd.shape[0], dtype=wide_type(hidden_nd.dtype))


def _fake_loss_and_gradients(
    coefficients_n: Tensor, hidden_nd: Tensor, weight_vd: Tensor, bias_v: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    losses_n = _fake_losses(hidden_nd)
    shapes = (hidden_nd.shape, weight_vd.shape, weight_vd.shape[:1])
    gradients = (
        hidden_nd.new_empty(shape if need else (0,)) for shape, need in zip(shapes, rest[-1], strict=True)
    )
    return losses_n.new_empty(()), losses_n, *gradients


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _losses_backward(ctx: Any, grad_losses_n: Tensor) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:3])
    outputs = _head_loss_and_gradients(grad_losses_n, *ctx.saved_tensors, *ctx.options, needs)
    gradients = (grad if need else None for grad, need in zip(outputs[2:], needs, strict=True))
    return *gradients, None, None, None, None


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.needs = inputs[-1]
    ctx.save_for_backward(*output[1:])


def _loss_backward(
    ctx: Any, grad_loss: Tensor | None, *grad_others: Tensor | None
) -> tuple[Tensor | None, ...]:
    if any(grad is not None for grad in grad_others):
        raise UnsupportedError(
            "chunked_cross_entropy was differentiated twice, and knows its first derivative only.",
            "Use F.cross_entropy(F.linear(...)) here.",
        )
    losses_n, *gradients = ctx.saved_tensors
    if grad_loss is None:
        return (None,) * 9
    # With one dimension, so that half-precision gradients are multiplied in the wide type and rounded once.
    factor = grad_loss.reshape(1)
    scaled = (
        (grad * factor).to(grad.dtype) if need else None
        for grad, need in zip(gradients, ctx.needs, strict=True)
    )
    return losses_n * grad_loss, *scaled, None, None, None, None, None


_head_losses.register_fake(_fake_losses)
_head_losses.register_autograd(_losses_backward, setup_context=_save_inputs)
_head_loss_and_gradients.register_fake(_fake_loss_and_gradients)
_head_loss_and_gradients.register_autograd(_loss_backward, setup_context=_save_gradients)


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    weights: Tensor | None = None,
    reduction: Reduction = "mean",
    chunk_tokens: int | None = None,
) -> Tensor:
    """Gives F.cross_entropy(F.linear(hidden, weight, bias), targets) without ever holding all the logits.

    `hidden` is [..., d], `weight` [vocabulary, d] and `targets` [...]. `weights`, of the targets' shape, is each token's
    weight (such as a mask); the mean divides by their sum, and is NaN without tokens, as in torch. The loss is float32
    or wider whatever the type of the matrices; autocast casts them as it does an output layer's. A device whose compiler
    knows only torch's ops gets those, and holds all the logits.
    """
    if needs_plain_ops(hidden):
        return _whole_cross_entropy(
            hidden,
            weight,
            targets,
            bias,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            weights=weights,
            reduction=reduction,
        )
    hidden, weight, bias = _as_autocast(hidden, weight, bias)
    _check(hidden, weight, bias, targets, weights, label_smoothing, reduction, chunk_tokens)
    head = (hidden.reshape(-1, hidden.shape[-1]), weight, bias)
    targets_n = targets.reshape(-1).long()
    coefficients = torch.ones_like(targets_n, dtype=wide_type(hidden.dtype))
    if weights is not None:
        coefficients = weights.reshape(-1).to(coefficients.dtype)
        if not weights.requires_grad:  # a token of weight 0 needs no valid target
            targets_n = targets_n.where(coefficients != 0, ignore_index)
    coefficients = coefficients.where(targets_n != ignore_index, 0)
    options = (
        ignore_index,
        float(label_smoothing),
        chunk_tokens or chunk_length(weight.shape[0], weight.device),
    )
    if reduction == "mean":
        if targets_n.numel() == 0:
            return hidden.sum() * math.nan
        coefficients = coefficients / coefficients.sum()
    needs = [tensor is not None and tensor.requires_grad for tensor in head]
    is_one_number = reduction != "none"
    if is_one_number and any(needs) and torch.is_grad_enabled() and _may_fuse(hidden.dtype):
        return _head_loss_and_gradients(coefficients, *head, targets_n, *options, needs)[0]
    losses: Tensor = _head_losses(*head, targets_n, *options) * coefficients
    return losses.sum() if is_one_number else losses.reshape(targets.shape)


def _whole_cross_entropy(
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
    """The same value in plain ops over all the logits at once, for compilers that must see each op."""
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


def _may_fuse(dtype: torch.dtype) -> bool:
    # float16 gradients must be scaled before they are rounded, and a loss scale is known only in backward.
    # An exported graph mostly runs only forward.
    # The flag itself: torch 2.11 makes is_exporting() True in all that it compiles.
    is_exporting = getattr(torch.compiler, "_is_exporting_flag", False)
    return dtype != torch.float16 and not is_exporting


def _as_autocast(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    device = hidden.device.type
    if not torch.is_autocast_enabled(device) or hidden.dtype == torch.float64:
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _check(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None,
    label_smoothing: float,
    reduction: str,
    chunk_tokens: int | None,
) -> None:
    check_label_smoothing(label_smoothing)
    if reduction not in _REDUCTIONS:
        raise UserError(f"Unknown reduction {reduction!r}.", suggest(str(reduction), _REDUCTIONS))
    if chunk_tokens is not None and chunk_tokens < 1:
        raise UserError(
            f"chunk_tokens is {chunk_tokens}.", "Give at least 1, or None to choose by the vocabulary."
        )
    if hidden.dim() < 1 or weight.dim() != 2 or hidden.shape[-1] != weight.shape[1]:
        raise UserError(
            f"hidden has the shape {tuple(hidden.shape)} and weight {tuple(weight.shape)}.",
            "Give hidden states [..., width] and a weight [vocabulary, width].",
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise UserError(
            f"bias has the shape {tuple(bias.shape)}.", f"Give one for each of {weight.shape[0]} words."
        )
    types = {tensor.dtype for tensor in (hidden, weight, bias) if tensor is not None}
    if len(types) > 1 or not hidden.is_floating_point():
        raise UserError(
            f"hidden, weight and bias have the types {', '.join(sorted(map(str, types)))}.",
            "Give them one floating-point type, or use autocast.",
        )
    if targets.shape != hidden.shape[:-1] or targets.is_floating_point() or targets.dtype == torch.bool:
        raise UserError(
            f"targets are {targets.dtype} of shape {tuple(targets.shape)}, hidden states {tuple(hidden.shape)}.",
            "Give one integer for each hidden state.",
        )
    if weights is not None and weights.shape != targets.shape:
        raise UserError(
            f"weights have the shape {tuple(weights.shape)} and targets {tuple(targets.shape)}.",
            "Give one weight for each target.",
        )
