"""The loss of an encoder-decoder's target tokens, whose logits never exist whole where the device allows it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from portwright.losses import chunked_cross_entropy, token_cross_entropy
from portwright.losses.tokens import wide_type
from portwright.networks.head_loss import takes_custom_ops
from portwright.networks.token_loss import IGNORED_LABEL, label_coefficients


def seq2seq_loss(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    label_weights: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    loss_scaling: str = "num_tokens",
    loss_weight: float = 1.0,
) -> Tensor:
    """The loss of labels [batch, target] under the output layer `weight`; label_weights are 1 for a token, 0 for padding."""
    coefficients = label_coefficients(
        labels, label_weights, wide_type(hidden.dtype), loss_scaling=loss_scaling, loss_weight=loss_weight
    )
    if takes_custom_ops(hidden):
        return chunked_cross_entropy(
            hidden,
            weight,
            labels,
            ignore_index=IGNORED_LABEL,
            label_smoothing=label_smoothing,
            weights=coefficients,
            reduction="sum",
        )
    losses = token_cross_entropy(
        F.linear(hidden, weight), labels, ignore_index=IGNORED_LABEL, label_smoothing=label_smoothing
    )
    return (losses * coefficients.to(losses.dtype)).sum()
