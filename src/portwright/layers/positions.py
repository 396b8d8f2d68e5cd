"""Position embeddings: fixed sinusoids, T5's relative buckets, ALiBi, and the rotary helper of rotary.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from portwright.errors import UserError, suggest
from portwright.layers.initializers import InitializerSpec, get_initializer
from portwright.layers.rotary import DerivedTables, RotaryLayout, RotaryPositionEmbeddingHelper

__all__ = [
    "AlibiPositionEmbeddingLayer",
    "FixedPositionEmbeddingLayer",
    "RelativePositionEmbedding",
    "RelativePositionEmbeddingLayer",
    "RotaryLayout",
    "RotaryPositionEmbeddingHelper",
    "SinusoidVariant",
    "alibi_slopes",
    "relative_position_bucket",
    "sinusoids",
]

SinusoidVariant = Literal["tutorial", "modelzoo"]
_VARIANTS = ("tutorial", "modelzoo")


def sinusoids(
    num_positions: int,
    width: int,
    *,
    variant: SinusoidVariant = "tutorial",
    min_timescale: float = 1.0,
    max_timescale: float = 1e4,
    device: torch.device | str | None = None,
) -> Tensor:
    """Makes a float32 table [positions, width] of sines in even columns and cosines in odd ones.

    `tutorial` is the PyTorch tutorial's: frequency i of n is (max/min)^(-i/n). `modelzoo` spreads them over n-1
    steps, so that the last is exactly min/max, multiplies them by min_timescale, and leaves the last column of
    an odd width zero.
    """
    if variant not in _VARIANTS:
        raise UserError(f"Unknown sinusoid variant {variant!r}.", suggest(str(variant), _VARIANTS))
    if num_positions < 1 or width < 1:
        raise UserError(
            f"Sinusoids were asked for {num_positions} positions of width {width}.",
            "Give at least 1 of each.",
        )
    if not 0 < min_timescale <= max_timescale < math.inf:
        raise UserError(
            f"min_timescale is {min_timescale} and max_timescale {max_timescale}.",
            "Give positive timescales, the smaller as the minimum.",
        )
    position = torch.arange(num_positions, device=device).unsqueeze(1)
    log_ratio = math.log(max_timescale / min_timescale)
    # Both round as their originals do, so that losses can be compared to the last digits.
    if variant == "tutorial":
        even_columns = torch.arange(0, width, 2, device=device)
        frequencies = torch.exp(even_columns * (-log_ratio / width)) / min_timescale
    else:
        num_frequencies = width // 2
        steps = torch.arange(num_frequencies, dtype=torch.float32, device=device)
        frequencies = min_timescale * torch.exp(steps * -(log_ratio / max(num_frequencies - 1, 1)))
    table = torch.zeros(num_positions, width, device=device, dtype=torch.float32)
    angles = position * frequencies
    table[:, 0 : 2 * len(frequencies) : 2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles[:, : width // 2])
    return table


class FixedPositionEmbeddingLayer(DerivedTables):
    """Sinusoids of the positions asked for; there is nothing to train and nothing to save."""

    table: Tensor

    def __init__(
        self,
        max_position_embeddings: int,
        positional_embedding_size: int,
        min_timescale: float = 1.0,
        max_timescale: float = 1e4,
        *,
        variant: SinusoidVariant = "tutorial",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.max_position_embeddings = max_position_embeddings
        self.positional_embedding_size = positional_embedding_size
        self.min_timescale = min_timescale
        self.max_timescale = max_timescale
        self.variant = variant
        self._register_tables(device)

    def _make_tables(self, device: torch.device) -> Mapping[str, Tensor]:
        return {
            "table": sinusoids(
                self.max_position_embeddings,
                self.positional_embedding_size,
                variant=self.variant,
                min_timescale=self.min_timescale,
                max_timescale=self.max_timescale,
                device=device,
            )
        }

    def forward(
        self,
        length: int,
        position_ids: Tensor | None = None,
        dtype: torch.dtype | None = None,
        *,
        past_length: int = 0,
    ) -> Tensor:
        """Gives [length, width] from `past_length` on, or a row for each of `position_ids`."""
        if position_ids is not None:
            return self.table[position_ids].to(dtype)
        check_positions(past_length, length, self.max_position_embeddings)
        return self.table[past_length : past_length + length].to(dtype)

    def extra_repr(self) -> str:
        return f"{self.max_position_embeddings}, {self.positional_embedding_size}, {self.variant}"


def check_positions(past_length: int, length: int, max_position_embeddings: int) -> None:
    """Refuses a sequence that reaches beyond the table."""
    if past_length < 0 or past_length + length > max_position_embeddings:
        raise UserError(
            f"A sequence of {length} after {past_length} does not fit in {max_position_embeddings} positions.",
            "Raise max_position_embeddings, or shorten the sequence.",
        )


def _distances(
    seq_length: int, key_length: int, past_kv: object, past_length: int | None, device: torch.device
) -> Tensor:
    """How far each key is after each query; with a cache alone the queries are the last of the keys."""
    if past_length is None:
        past_length = 0 if past_kv is None else key_length - seq_length
    if past_length < 0:
        raise UserError(
            f"A position bias was asked for {seq_length} queries and {key_length} keys after a cache.",
            "Count the cached keys in key_length.",
        )
    queries = torch.arange(past_length, past_length + seq_length, device=device)
    return torch.arange(key_length, device=device).unsqueeze(0) - queries.unsqueeze(1)


def relative_position_bucket(
    relative_position: Tensor, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128
) -> Tensor:
    """T5's buckets of distances (key minus query): one for each near distance, wider ones for far distances.

    One-directional buckets put every later key into bucket 0.
    """
    first = torch.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        first = (relative_position > 0).to(relative_position.dtype) * num_buckets
        distance = relative_position.abs()
    else:
        distance = (-relative_position).clamp(min=0)
    num_exact = num_buckets // 2
    # In float32 and in this order, so that distances at a bucket's edge get T5's bucket.
    ratio = torch.log(distance.clamp(min=num_exact).float() / num_exact) / math.log(max_distance / num_exact)
    far = num_exact + (ratio * (num_buckets - num_exact)).to(relative_position.dtype)
    return first + torch.where(distance < num_exact, distance, far.clamp(max=num_buckets - 1))


class RelativePositionEmbeddingLayer(nn.Module):
    """T5's relative position bias: a learned number for each head and bucket of distances.

    `relative_attention_bias` shares an embedding [buckets, heads] that another layer owns; it is used as it is.
    """

    def __init__(
        self,
        num_heads: int,
        relative_attention_bias: nn.Embedding | nn.Parameter | None = None,
        num_relative_attention_buckets: int = 32,
        bidirectional_relative_attention: bool = False,
        relative_attn_bias_initializer: InitializerSpec = "xavier_uniform",
        *,
        max_relative_positions: int = 128,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        fewest = 4 if bidirectional_relative_attention else 2
        if num_heads < 1 or num_relative_attention_buckets < fewest:
            raise UserError(
                f"Relative positions got num_heads={num_heads} and {num_relative_attention_buckets} buckets.",
                f"Give at least 1 head and {fewest} buckets.",
            )
        if max_relative_positions <= num_relative_attention_buckets // fewest:
            raise UserError(
                f"max_relative_positions is {max_relative_positions}.",
                f"Give more than {num_relative_attention_buckets // fewest}, where the buckets begin to widen.",
            )
        self.num_heads = num_heads
        self.num_relative_attention_buckets = num_relative_attention_buckets
        self.bidirectional_relative_attention = bidirectional_relative_attention
        self.max_relative_positions = max_relative_positions
        self.relative_attn_bias_initializer = get_initializer(relative_attn_bias_initializer)
        shape = (num_relative_attention_buckets, num_heads)
        if relative_attention_bias is None:
            self.relative_attention_bias = nn.Embedding(*shape, device=device, dtype=dtype)
            self.reset_parameters()
        else:
            self.relative_attention_bias = _as_embedding(relative_attention_bias, shape)

    def reset_parameters(self) -> None:
        """Fills the bias anew."""
        self.relative_attn_bias_initializer(self.relative_attention_bias.weight)

    def forward(
        self, seq_length: int, key_length: int, past_kv: object = None, *, past_length: int | None = None
    ) -> Tensor:
        """Gives the bias [1, heads, queries, keys] to add to attention scores.

        The first query stands at `past_length`; when only a cache is given the queries are the last of the keys.
        """
        device = self.relative_attention_bias.weight.device
        buckets = relative_position_bucket(
            _distances(seq_length, key_length, past_kv, past_length, device),
            bidirectional=self.bidirectional_relative_attention,
            num_buckets=self.num_relative_attention_buckets,
            max_distance=self.max_relative_positions,
        )
        bias_qkh: Tensor = self.relative_attention_bias(buckets)
        return bias_qkh.permute(2, 0, 1).unsqueeze(0)


RelativePositionEmbedding = RelativePositionEmbeddingLayer


def _as_embedding(bias: nn.Embedding | nn.Parameter, shape: tuple[int, int]) -> nn.Embedding:
    weight = bias.weight if isinstance(bias, nn.Embedding) else bias
    if not isinstance(weight, nn.Parameter) or tuple(weight.shape) != shape:
        received = tuple(weight.shape) if isinstance(weight, Tensor) else repr(weight)
        raise UserError(
            f"relative_attention_bias is a {type(bias).__name__} of {received}.",
            f"Give an nn.Embedding or an nn.Parameter of {shape}: buckets, heads.",
        )
    if isinstance(bias, nn.Embedding):
        return bias
    shared = nn.Embedding(*shape, device="meta")
    shared.weight = weight
    return shared


def alibi_slopes(num_heads: int) -> list[float]:
    """Gives ALiBi's slope for each head: a geometric row that ends at 2^-8 (arXiv 2108.12409).

    Where the number is not a power of two, the row of the next lower power comes first, then every other slope of the
    next higher one.
    """
    if num_heads < 1:
        raise UserError(f"num_heads is {num_heads}.", "Give at least 1.")

    def row(count: int) -> list[float]:
        return [2.0 ** (-8.0 * step / count) for step in range(1, count + 1)]

    lower = 1 << (num_heads.bit_length() - 1)
    return row(lower) + row(2 * lower)[0::2][: num_heads - lower]


class AlibiPositionEmbeddingLayer(nn.Module):
    """ALiBi: a penalty on attention that grows with distance, at each head's own slope.

    Distance counts in both directions. `scaling_factor` divides it, to stretch a model to longer sequences.
    Trainable slopes start from `slopes` where given, and else from the initializer.
    """

    slopes: Tensor

    def __init__(
        self,
        num_heads: int,
        slopes: Tensor | Sequence[float] | None = None,
        alibi_trainable_slopes: bool = False,
        slopes_initializer: InitializerSpec = "xavier_uniform",
        scaling_factor: float = 1.0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not 0 < scaling_factor < math.inf:
            raise UserError(f"The ALiBi scaling factor is {scaling_factor}.", "Give a positive number.")
        self.num_heads = num_heads
        self.alibi_trainable_slopes = alibi_trainable_slopes
        self.slopes_initializer = get_initializer(slopes_initializer)
        self.scaling_factor = scaling_factor
        start = torch.as_tensor(alibi_slopes(num_heads) if slopes is None else slopes).detach()
        if start.numel() != num_heads:
            raise UserError(
                f"ALiBi got slopes of shape {tuple(start.shape)} for {num_heads} heads.",
                "Give one for each head.",
            )
        self._given_slopes = None if slopes is None else start
        column = start.reshape(num_heads, 1).to(
            device=device, dtype=dtype or torch.get_default_dtype(), copy=True
        )
        if alibi_trainable_slopes:
            self.slopes = nn.Parameter(column)
            self.reset_parameters()
        else:
            self.register_buffer("slopes", column)

    def reset_parameters(self) -> None:
        """Resets trained slopes to their initial values."""
        if not self.alibi_trainable_slopes:
            return
        if self._given_slopes is None:
            self.slopes_initializer(self.slopes)
        else:
            with torch.no_grad():
                self.slopes.copy_(self._given_slopes.reshape(self.num_heads, 1))

    def forward(
        self, seq_length: int, key_length: int, past_kv: object = None, *, past_length: int | None = None
    ) -> Tensor:
        """Gives the bias [1, heads, queries, keys] to add to attention scores.

        The first query stands at `past_length`; when only a cache is given the queries are the last of the keys.
        """
        distance = _distances(seq_length, key_length, past_kv, past_length, self.slopes.device).abs()
        wide = self.slopes.to(torch.promote_types(self.slopes.dtype, torch.float32))
        bias = wide.unsqueeze(-1) * distance / -self.scaling_factor
        return bias.to(self.slopes.dtype).unsqueeze(0)
