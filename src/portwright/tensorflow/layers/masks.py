"""Makes attention masks, and turns them into values to add to the scores, and into the queries that see any key.

A mask is True (bool) where nothing may be attended to, or is added to the scores (float, where the lowest number of
its type and -inf mean masked). Shapes are [batch, heads, queries, keys] with 1 where they repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow.layers.base import check_sizes, shape_of

# Far below every score, but finite: the softmax of a fully masked row must not be NaN before the row is zeroed.
LOWEST = -1e30


def create_autoregressive_mask(num_queries: int, num_keys: int | None = None, num_past: int = 0) -> Any:
    """The bool mask [queries, keys] that hides the keys after each query; the first query stands at `num_past`."""
    num_keys = num_past + num_queries if num_keys is None else num_keys
    # Computed, not a constant: constants of 2,048 x 2,048 in each layer would make the graph large and slow to build.
    return tf.range(num_queries)[:, None] + num_past < tf.range(num_keys)[None, :]


def create_sliding_window_mask(
    sequence_length: int, window_length: int, *, num_sink_tokens: int = 0, causal: bool = True
) -> Any:
    """The bool mask that leaves each position the `window_length` latest ones, itself counted in.

    Without `causal` the window reaches as far ahead as back. The first `num_sink_tokens` stay in sight of all
    later positions.
    """
    check_sizes(sequence_length=sequence_length, window_length=window_length)
    positions = np.arange(sequence_length)
    distance = positions[:, None] - positions[None, :]
    masked = (distance if causal else np.abs(distance)) >= window_length
    masked &= positions[None, :] >= num_sink_tokens
    return tf.constant(masked | (distance < 0) if causal else masked)


def generate_square_subsequent_mask(sz: int, dtype: Any = tf.float32) -> Any:
    """The causal mask as torch.nn.Transformer makes it: -inf is masked, 0 attended."""
    check_sizes(sz=sz)
    return tf.constant(np.triu(np.full((sz, sz), -np.inf), 1), dtype)


def make_padding_mask(lengths: Any, max_length: int) -> Any:
    """The bool mask [batch, max_length] that hides what comes after each sequence's length."""
    return tf.logical_not(tf.sequence_mask(lengths, max_length))


def mask_of_zeros(mask: Any) -> Any:
    """The bool mask of one that has 1 for tokens and 0 for padding, as BERT's input_mask has."""
    return tf.equal(mask, tf.zeros([], mask.dtype))


def attn_mask_to_4d(mask: Any, scores_shape: Sequence[int | None]) -> Any:
    """[queries, keys], [batch or batch * heads, queries, keys] or four dimensions, as four.

    `scores_shape` is what the mask must fit: [batch, heads, queries, keys], None where unknown.
    """
    mask = _checked("attn_mask", mask)
    batch, heads = scores_shape[:2]
    if mask.shape.rank == 2:
        mask = mask[None, None]
    elif mask.shape.rank == 3:
        count = mask.shape[0]
        if None not in (count, batch) and count not in (1, batch) and count == (batch or 0) * (heads or 0):
            mask = tf.reshape(mask, [batch, heads, *shape_of(mask)[1:]])
        else:
            mask = mask[:, None]
    if mask.shape.rank != 4 or not _fits(mask, scores_shape):
        raise UserError(
            f"attn_mask has shape {mask.shape}, and the scores {_show(scores_shape)}.",
            "Give it [queries, keys], [batch, queries, keys] or [batch, heads, queries, keys].",
        )
    return mask


def key_padding_mask_to_4d(mask: Any, scores_shape: Sequence[int | None]) -> Any:
    """[batch, keys] as [batch, 1, 1, keys]."""
    mask = _checked("key_padding_mask", mask)
    if mask.shape.rank != 2 or not _fits(mask[:, None, None, :], scores_shape):
        raise UserError(
            f"key_padding_mask has shape {mask.shape}, and the scores {_show(scores_shape)}.",
            "Give it [batch, keys].",
        )
    return mask[:, None, None, :]


def _fits(mask: Any, scores_shape: Sequence[int | None]) -> bool:
    """Whether a mask names every key; other dimensions may be 1."""
    sizes = list(zip(mask.shape.as_list(), scores_shape, strict=True))
    *others, keys = sizes
    return (None in keys or keys[0] == keys[1]) and all(
        None in (size, wanted) or size in (1, wanted) for size, wanted in others
    )


def _show(scores_shape: Sequence[int | None]) -> str:
    return f"({', '.join(str(size) for size in scores_shape)}): batch, heads, queries, keys"


def _checked(name: str, mask: Any) -> Any:
    mask = tf.convert_to_tensor(mask)
    if mask.dtype != tf.bool and not mask.dtype.is_floating:
        raise UserError(
            f"{name} has type {mask.dtype.name}.",
            "Give bool (True is masked; mask_of_zeros makes it from 1 for tokens and 0 for padding) or a "
            "floating-point type that is added to the scores.",
        )
    return mask


def merge_masks(masks: list[Any], position_bias: Any, dtype: Any) -> tuple[Any, Any]:
    """What to add to the scores, or None, and the queries [batch, heads, queries, 1] that see a key, or None for all."""
    additive = None if position_bias is None else tf.cast(position_bias, dtype)
    hidden = None
    for mask in masks:
        if mask.dtype != tf.bool:
            lowest = max(float(mask.dtype.min), float(np.finfo(np.float32).min))
            is_hidden = mask <= tf.cast(lowest, mask.dtype)
            shown = tf.cast(tf.where(is_hidden, tf.zeros_like(mask), mask), dtype)
            additive = shown if additive is None else additive + shown
        else:
            is_hidden = mask
        hidden = is_hidden if hidden is None else tf.logical_or(hidden, is_hidden)
    if hidden is None:
        return additive, None
    blocked = tf.where(hidden, tf.constant(LOWEST, dtype), tf.constant(0.0, dtype))
    additive = blocked if additive is None else additive + blocked
    return additive, tf.reduce_any(tf.logical_not(hidden), axis=-1, keepdims=True)
