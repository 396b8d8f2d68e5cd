"""Position embeddings: fixed sinusoids, T5's relative buckets and ALiBi."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.base import BaseLayer, check_sizes
from portwright.tensorflow.layers.initializers import InitializerSpec, get_initializer

SinusoidVariant = Literal["tutorial", "modelzoo"]
_VARIANTS = ("tutorial", "modelzoo")
Array = Any  # of numpy


def sinusoids(
    num_positions: int,
    width: int,
    *,
    variant: SinusoidVariant = "tutorial",
    min_timescale: float = 1.0,
    max_timescale: float = 1e4,
) -> Array:
    """Makes a float32 table [positions, width] of sines in even columns and cosines in odd ones, as NumPy's.

    `tutorial` is the PyTorch tutorial's: frequency i of n is (max/min)^(-i/n). `modelzoo` spreads them over n-1
    steps, so that the last is exactly min/max, multiplies them by min_timescale, and leaves the last column of
    an odd width zero.
    """
    if variant not in _VARIANTS:
        raise UserError(f"Unknown sinusoid variant {variant!r}.", suggest(str(variant), _VARIANTS))
    check_sizes(num_positions=num_positions, width=width)
    if not 0 < min_timescale <= max_timescale < math.inf:
        raise UserError(
            f"min_timescale is {min_timescale} and max_timescale {max_timescale}.",
            "Give positive timescales, the smaller as the minimum.",
        )
    log_ratio = math.log(max_timescale / min_timescale)
    if variant == "tutorial":
        even_columns = np.arange(0, width, 2).astype(np.float32)
        frequencies = np.exp(even_columns * np.float32(-log_ratio / width)) / np.float32(min_timescale)
    else:
        num_frequencies = width // 2
        steps = np.arange(num_frequencies, dtype=np.float32)
        frequencies = np.float32(min_timescale) * np.exp(
            steps * np.float32(-(log_ratio / max(num_frequencies - 1, 1)))
        )
    angles = np.outer(np.arange(num_positions, dtype=np.float32), frequencies)
    table = np.zeros((num_positions, width), np.float32)
    table[:, 0 : 2 * len(frequencies) : 2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles[:, : width // 2])
    return table


def check_positions(past_length: int, length: int | None, max_position_embeddings: int) -> None:
    """Refuses a sequence of unknown length, or that reaches beyond the table."""
    if length is None or past_length < 0 or past_length + length > max_position_embeddings:
        raise UserError(
            f"A sequence of {length or 'unknown length'} after {past_length} does not fit in "
            f"{max_position_embeddings} positions.",
            "Raise max_position_embeddings, shorten the sequence, or make its length static.",
        )


class FixedPositionEmbedding:
    """Sinusoids of the positions asked for; there is nothing to train and nothing to save."""

    def __init__(
        self,
        max_position_embeddings: int,
        positional_embedding_size: int,
        min_timescale: float = 1.0,
        max_timescale: float = 1e4,
        *,
        variant: SinusoidVariant = "tutorial",
    ) -> None:
        self.max_position_embeddings = max_position_embeddings
        self._table = sinusoids(
            max_position_embeddings,
            positional_embedding_size,
            variant=variant,
            min_timescale=min_timescale,
            max_timescale=max_timescale,
        )

    def __call__(
        self, length: int | None, position_ids: Any = None, dtype: Any = tf.float32, *, past_length: int = 0
    ) -> Any:
        """Gives [length, width] from `past_length` on, or a row for each of `position_ids`."""
        if position_ids is not None:
            return tf.cast(tf.gather(tf.constant(self._table), position_ids), dtype)
        check_positions(past_length, length, self.max_position_embeddings)
        assert length is not None
        return tf.cast(tf.constant(self._table[past_length : past_length + length]), dtype)


FixedPositionEmbeddingLayer = FixedPositionEmbedding


def _distances(seq_length: int, key_length: int, past_length: int | None) -> Array:
    check_sizes(seq_length=seq_length, key_length=key_length)
    past = 0 if past_length is None else past_length
    return np.arange(key_length)[None, :] - np.arange(past, past + seq_length)[:, None]


def relative_position_bucket(
    relative_position: Array, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128
) -> Array:
    """Sorts distances (key minus query) into T5's buckets: one each for the near, ever wider ones for the far.

    One-directional buckets put every later key into bucket 0.
    """
    first = np.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        first = (relative_position > 0).astype(relative_position.dtype) * num_buckets
        distance = np.abs(relative_position)
    else:
        distance = np.maximum(-relative_position, 0)
    num_exact = num_buckets // 2
    # In float32 and in this order, so that distances on an edge fall where T5's do.
    ratio = np.log(np.maximum(distance, num_exact).astype(np.float32) / np.float32(num_exact))
    ratio = ratio / np.float32(math.log(max_distance / num_exact))
    far = num_exact + (ratio * np.float32(num_buckets - num_exact)).astype(relative_position.dtype)
    return first + np.where(distance < num_exact, distance, np.minimum(far, num_buckets - 1))


class RelativePositionEmbeddingLayer(BaseLayer):
    """T5's relative position bias: a learned number for each head and bucket of distances.

    Called with the numbers of queries and keys, it gives the bias [1, heads, queries, keys]; one layer is meant to
    serve all layers of a stack. The weight is `relative_attention_bias`, [buckets, heads].
    """

    def __init__(
        self,
        num_heads: int,
        num_relative_attention_buckets: int = 32,
        bidirectional_relative_attention: bool = False,
        relative_attn_bias_initializer: InitializerSpec = "xavier_uniform",
        *,
        max_relative_positions: int = 128,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        fewest = 4 if bidirectional_relative_attention else 2
        check_sizes(num_heads=num_heads, num_relative_attention_buckets=num_relative_attention_buckets)
        if num_relative_attention_buckets < fewest:
            raise UserError(
                f"There are {num_relative_attention_buckets} buckets of relative positions.",
                f"Give at least {fewest}.",
            )
        if max_relative_positions <= num_relative_attention_buckets // fewest:
            raise UserError(
                f"max_relative_positions is {max_relative_positions}.",
                f"Give more than {num_relative_attention_buckets // fewest}, where the buckets begin to widen.",
            )
        self.num_heads, self.num_buckets = num_heads, num_relative_attention_buckets
        self.bidirectional, self.max_distance = bidirectional_relative_attention, max_relative_positions
        self.initializer = get_initializer(relative_attn_bias_initializer)

    def build(self, input_shape: Any) -> None:
        shape = (self.num_buckets, self.num_heads)
        self.relative_attention_bias = self.add_parameter("relative_attention_bias", shape, self.initializer)
        super().build(input_shape)

    def __call__(self, seq_length: int, key_length: int, *, past_length: int | None = None) -> Any:
        """Gives the bias to add to attention scores; the first query stands at `past_length`."""
        buckets_qk = relative_position_bucket(
            _distances(seq_length, key_length, past_length),
            bidirectional=self.bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        return super().__call__(tf.constant(buckets_qk))

    def call(self, buckets_qk: Any) -> Any:
        # A product with one-hot rows instead of a gather, so that the gradient is a product as well and not sparse.
        table = tf.convert_to_tensor(self.relative_attention_bias)
        one_hot = tf.one_hot(tf.reshape(buckets_qk, [-1]), self.num_buckets, dtype=table.dtype)
        bias_qkh = tf.reshape(tf.matmul(one_hot, table), [*buckets_qk.shape, self.num_heads])
        return tf.transpose(bias_qkh, [2, 0, 1])[None]


RelativePositionEmbedding = RelativePositionEmbeddingLayer


def alibi_slopes(num_heads: int) -> list[float]:
    """Gives ALiBi's slope for each head: a geometric row that ends at 2^-8 (arXiv 2108.12409).

    For a number that is no power of two, the row of the next lower power comes first, and the rest are every
    other slope of the next higher one.
    """
    check_sizes(num_heads=num_heads)

    def row(count: int) -> list[float]:
        return [2.0 ** (-8.0 * step / count) for step in range(1, count + 1)]

    lower = 1 << (num_heads.bit_length() - 1)
    return row(lower) + row(2 * lower)[0::2][: num_heads - lower]


class AlibiPositionEmbedding:
    """ALiBi: a penalty on attention that grows with distance, at each head's own slope; nothing is trained."""

    def __init__(
        self, num_heads: int, slopes: Sequence[float] | None = None, scaling_factor: float = 1.0
    ) -> None:
        slopes = alibi_slopes(num_heads) if slopes is None else [float(slope) for slope in slopes]
        if len(slopes) != num_heads:
            raise UserError(
                f"ALiBi got {len(slopes)} slopes for {num_heads} heads.", "Give one for each head."
            )
        if not 0 < scaling_factor < math.inf:
            raise UserError(f"The ALiBi scaling factor is {scaling_factor}.", "Give a positive number.")
        self._slopes = np.asarray(slopes, np.float32) / np.float32(scaling_factor)

    def __call__(self, seq_length: int, key_length: int, *, past_length: int | None = None) -> Any:
        """Gives the bias [1, heads, queries, keys]; the first query stands at `past_length`."""
        distance = np.abs(_distances(seq_length, key_length, past_length)).astype(np.float32)
        return tf.constant(-self._slopes[None, :, None, None] * distance[None, None])


AlibiPositionEmbeddingLayer = AlibiPositionEmbedding
