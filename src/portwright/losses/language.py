"""Losses that language models are trained with: GPT, BERT and T5, as the model zoo scales them.

Each is a sum over tokens, divided by the number of sequences or of tokens. The sums are float32 or wider whatever the
type of the logits.
"""

from __future__ import annotations

from typing import overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from portwright.errors import UserError, suggest
from portwright.losses.tokens import check_label_smoothing, token_cross_entropy, wide_type

_GPT_SCALINGS = ("num_tokens", "batch_size")
_T5_SCALINGS = ("num_masked", "precomputed_num_masked", "batch_size")


def smooth_loss(prediction_scores: Tensor, loss: Tensor, label_smoothing: float, classes: int) -> Tensor:
    """Adds label smoothing to losses [tokens] that were computed without it."""
    check_label_smoothing(label_smoothing)
    scores = prediction_scores.reshape(-1, classes)
    log_probs = F.log_softmax(scores, dim=-1, dtype=wide_type(scores.dtype))
    return (1.0 - label_smoothing) * loss - label_smoothing * log_probs.mean(dim=-1)


def _in_shape(weights: Tensor | None, labels: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    if weights is None:
        return torch.ones_like(labels, dtype=dtype)
    if weights.numel() != labels.numel():
        raise UserError(
            f"{name} has the shape {tuple(weights.shape)} and the labels {tuple(labels.shape)}.",
            "Give one for each label.",
        )
    return weights.reshape(labels.shape).to(dtype)


def _for_each_label(scale: Tensor, labels: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Expands a scale for each token, for each sequence, or for all, to one for each label."""
    per_sequence = (-1, *(1 for _ in labels.shape[1:]))
    if scale.numel() == labels.numel():
        return scale.reshape(labels.shape).to(dtype)
    if scale.numel() in (1, labels.shape[0]):
        return scale.reshape(per_sequence).to(dtype)
    raise UserError(
        f"{name} has the shape {tuple(scale.shape)} and the labels {tuple(labels.shape)}.",
        "Give one for each label, one for each sequence, or one.",
    )


def _by_label(logits: Tensor, labels: Tensor, vocab_size: int) -> Tensor:
    if logits.shape[-1] != vocab_size or logits.numel() != labels.numel() * vocab_size:
        raise UserError(
            f"Logits have the shape {tuple(logits.shape)}, labels {tuple(labels.shape)}, the vocabulary {vocab_size}.",
            "Give logits [..., vocabulary] for labels [...].",
        )
    return logits.reshape(*labels.shape, vocab_size)


def _per_token(total: Tensor, num_tokens: Tensor) -> Tensor:
    # A batch of padding only has a loss of 0.
    return total / num_tokens.where(num_tokens != 0, 1)


class GPTLMHeadModelLoss(nn.Module):
    """Cross-entropy of next tokens where the mask is not zero.

    The arguments are `(vocab_size, loss_weight)` or `(vocab_size, loss_scaling, loss_weight)`. With a scaling of
    `batch_size`, and without one, the sum is divided by the number of sequences and multiplied by the weight; with
    `num_tokens` it is divided by the sum of the mask.
    """

    @overload
    def __init__(self, vocab_size: int, loss_weight: float, /) -> None: ...
    @overload
    def __init__(self, vocab_size: int, loss_scaling: str = ..., loss_weight: float = ...) -> None: ...
    def __init__(
        self, vocab_size: int, loss_scaling: str | float = "batch_size", loss_weight: float | None = None
    ) -> None:
        super().__init__()
        if isinstance(loss_scaling, (int, float)) and loss_weight is None:
            loss_weight, loss_scaling = loss_scaling, "batch_size"
        if loss_scaling not in _GPT_SCALINGS:
            raise UserError(
                f"loss_scaling is {loss_scaling!r}.", suggest(str(loss_scaling).lower(), _GPT_SCALINGS)
            )
        self.vocab_size = vocab_size
        self.loss_scaling = str(loss_scaling)
        self.loss_weight = 1.0 if loss_weight is None else loss_weight
        if self.loss_scaling == "num_tokens" and self.loss_weight != 1.0:
            raise UserError(
                f"loss_weight is {self.loss_weight} with loss_scaling='num_tokens'.",
                "Leave the weight at 1.0, or scale by batch_size.",
            )

    def forward(
        self,
        lm_logits: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None = None,
        reduce_batch: bool = True,
        average_logps: bool = False,
    ) -> Tensor:
        """The loss of the batch, or with `reduce_batch=False` the sum (or mean) of each sequence."""
        if average_logps and reduce_batch:
            raise UserError("average_logps was asked for with reduce_batch.", "Set reduce_batch=False.")
        losses = token_cross_entropy(_by_label(lm_logits, labels, self.vocab_size), labels)
        mask = _in_shape(attention_mask, labels, losses.dtype, "attention_mask")
        if not reduce_batch:
            sums = (losses * mask).sum(dim=-1)
            return _per_token(sums, mask.sum(dim=-1)) if average_logps else sums
        total = (losses * mask).sum()
        if self.loss_scaling == "num_tokens":
            return _per_token(total, mask.sum())
        return total / labels.shape[0] * self.loss_weight


class BertPretrainModelLoss(nn.Module):
    """Masked-language-model loss, plus the next-sentence loss unless it is disabled.

    The first is summed with the given weights, divided by the number of sequences and multiplied by
    `mlm_loss_weight`; labels are smoothed in training only.
    """

    def __init__(
        self, disable_nsp: bool = False, mlm_loss_weight: float = 1.0, label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        check_label_smoothing(label_smoothing)
        self.disable_nsp = disable_nsp
        self.mlm_loss_weight = mlm_loss_weight
        self.label_smoothing = label_smoothing

    def forward(
        self,
        mlm_logits: Tensor,
        vocab_size: int,
        mlm_labels: Tensor,
        nsp_logits: Tensor | None,
        nsp_labels: Tensor | None,
        mlm_weights: Tensor | None,
        mlm_loss_scale: Tensor | None = None,
    ) -> Tensor:
        """The loss of the batch; `mlm_loss_scale`, for each token or sequence, replaces the fixed weight."""
        losses = token_cross_entropy(
            _by_label(mlm_logits, mlm_labels, vocab_size),
            mlm_labels,
            label_smoothing=self.label_smoothing if self.training else 0.0,
        )
        weights = _in_shape(mlm_weights, mlm_labels, losses.dtype, "mlm_weights")
        if mlm_loss_scale is not None:
            weights = weights * _for_each_label(mlm_loss_scale, mlm_labels, losses.dtype, "mlm_loss_scale")
        total = (losses * weights).sum() / mlm_labels.shape[0]
        if mlm_loss_scale is None:
            total = total * self.mlm_loss_weight
        if self.disable_nsp:
            return total
        if nsp_logits is None or nsp_labels is None:
            raise UserError(
                "The next-sentence loss got no logits or no labels.", "Give both, or set disable_nsp=True."
            )
        return total + token_cross_entropy(nsp_logits.reshape(-1, 2), nsp_labels.reshape(-1)).mean()


class T5ForConditionalGenerationLoss(nn.Module):
    """Cross-entropy of a decoder's tokens where the mask is not zero; labels are smoothed in training only.

    `mlm_loss_scaling` divides the sum by the tokens that count (`num_masked`), by the sequences with a fixed weight
    (`batch_size`), or by the sequences with weights that come with each batch (`precomputed_num_masked`).
    """

    def __init__(
        self, lm_loss_weight: float | None, mlm_loss_scaling: str, label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        check_label_smoothing(label_smoothing)
        if mlm_loss_scaling not in _T5_SCALINGS:
            raise UserError(
                f"mlm_loss_scaling is {mlm_loss_scaling!r}.",
                suggest(str(mlm_loss_scaling).lower(), _T5_SCALINGS),
            )
        if lm_loss_weight is None and mlm_loss_scaling == "batch_size":
            raise UserError(
                "mlm_loss_scaling='batch_size' got no lm_loss_weight.", "Give a number, such as 1.0."
            )
        self.global_loss_weight = 1.0 if lm_loss_weight is None else lm_loss_weight
        self.mlm_loss_scaling = mlm_loss_scaling
        self.label_smoothing = label_smoothing

    def forward(
        self,
        lm_logits: Tensor,
        labels: Tensor,
        decoder_attention_mask: Tensor | None = None,
        loss_weight: Tensor | None = None,
    ) -> Tensor:
        """Gives the loss of the batch.

        `loss_weight` belongs to `precomputed_num_masked`; evaluation without it takes the fixed weight, or 1.
        """
        losses = token_cross_entropy(
            _by_label(lm_logits, labels, lm_logits.shape[-1]),
            labels,
            label_smoothing=self.label_smoothing if self.training else 0.0,
        )
        mask = _in_shape(decoder_attention_mask, labels, losses.dtype, "decoder_attention_mask")
        if self.mlm_loss_scaling == "num_masked":
            return _per_token((losses * mask).sum(), mask.sum())
        is_fixed = self.mlm_loss_scaling == "batch_size"
        if loss_weight is None and self.training and not is_fixed:
            raise UserError(
                "mlm_loss_scaling='precomputed_num_masked' got no loss_weight.",
                "Give the weights of the batch, or scale by num_masked.",
            )
        if is_fixed or loss_weight is None:
            return (losses * mask).sum() / labels.shape[0] * self.global_loss_weight
        weights = _for_each_label(loss_weight, labels, losses.dtype, "loss_weight")
        return (losses * mask * weights).sum() / labels.shape[0]
