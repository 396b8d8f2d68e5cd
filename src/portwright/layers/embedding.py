"""Token embeddings with their positions and segments in one layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from portwright.errors import UserError, suggest
from portwright.layers.initializers import Initializer, InitializerSpec, get_initializer
from portwright.layers.positions import (
    AlibiPositionEmbeddingLayer,
    FixedPositionEmbeddingLayer,
    RelativePositionEmbeddingLayer,
    RotaryLayout,
    RotaryPositionEmbeddingHelper,
    SinusoidVariant,
    check_positions,
)

PositionEmbeddingType = Literal["learned", "fixed", "rotary", "relative", "alibi"]
_POSITION_TYPES = ("learned", "fixed", "rotary", "relative", "alibi")


class EmbeddingLayer(nn.Module):
    """Word embeddings, plus learned or fixed positions and segments where asked for.

    Rotary, relative and ALiBi positions belong into the attention: `get_rope_helper` and `compute_position_bias`
    give it what it needs. `embedding_scale` multiplies the word embedding alone, `output_scale` the sum of all
    parts, and dropout comes last. An initializer of None leaves a table as nn.Embedding draws it. The PyTorch tutorial's input is `position_embedding_type="fixed"` with
    `embedding_scale=math.sqrt(embedding_size)` and its dropout; the model zoo's sinusoids are
    `sinusoid_variant="modelzoo"`.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        pad_token_id: int | None = None,
        segment_embedding_size: int | None = None,
        embeddings_initializer: InitializerSpec | None = "uniform",
        max_position_embeddings: int | None = None,
        position_embedding_type: PositionEmbeddingType | None = "learned",
        min_timescale: float = 1.0,
        max_timescale: float = 1e4,
        position_embeddings_initializer: InitializerSpec | None = "uniform",
        num_segments: int | None = None,
        segment_embeddings_initializer: InitializerSpec = "uniform",
        device: torch.device | str | None = None,
        *,
        dtype: torch.dtype | None = None,
        dropout: float = 0.0,
        embedding_scale: float = 1.0,
        output_scale: float = 1.0,
        sinusoid_variant: SinusoidVariant = "tutorial",
        positional_embedding_size: int | None = None,
        position_embedding_offset: int = 0,
        num_heads: int | None = None,
        relative_attention_bias: nn.Embedding | nn.Parameter | None = None,
        num_relative_attention_buckets: int = 32,
        max_relative_positions: int = 128,
        bidirectional: bool = False,
        initializer: InitializerSpec = "xavier_uniform",
        rotary_dim: int | None = None,
        rope_theta: float = 10000.0,
        rotary_layout: RotaryLayout = "interleaved",
        alibi_slopes: Tensor | Sequence[float] | None = None,
        alibi_trainable_slopes: bool = False,
        pos_scaling_factor: float = 1.0,
        pos_scaling_type: str = "linear",
        pos_scaling_extra_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(vocab_size=vocab_size, embedding_size=embedding_size, num_segments=num_segments or 1)
        if pad_token_id is not None and not -vocab_size <= pad_token_id < vocab_size:
            raise UserError(
                f"pad_token_id is {pad_token_id} in a vocabulary of {vocab_size}.",
                "Give a token of the vocabulary.",
            )
        for name, scale in (("embedding_scale", embedding_scale), ("output_scale", output_scale)):
            if not math.isfinite(scale):
                raise UserError(f"{name} is {scale}.", "Give a finite number.")
        if not 0 <= dropout <= 1:
            raise UserError(f"dropout is {dropout}.", "Give a probability, from 0 to 1.")
        self.embedding_size = embedding_size
        self.segment_embedding_size = segment_embedding_size or embedding_size
        self.positional_embedding_size = positional_embedding_size or embedding_size
        self.pad_token_id = pad_token_id
        self.position_embedding_type = position_embedding_type
        self.max_position_embeddings = max_position_embeddings
        self.position_embedding_offset = position_embedding_offset
        self.embedding_scale = embedding_scale
        self.output_scale = output_scale
        self.embeddings_initializer = _initializer_or_none(embeddings_initializer)
        self.position_embeddings_initializer = _initializer_or_none(position_embeddings_initializer)
        self.segment_embeddings_initializer = get_initializer(segment_embeddings_initializer)

        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.word_embeddings = nn.Embedding(vocab_size, embedding_size, padding_idx=pad_token_id, **factory)
        self.position_embeddings: nn.Embedding | FixedPositionEmbeddingLayer | None = None
        self.position_embed_helper: nn.Module | None = None
        if position_embedding_type is not None and position_embedding_type not in _POSITION_TYPES:
            raise UserError(
                f"Unknown position embedding type {position_embedding_type!r}.",
                f"{suggest(str(position_embedding_type).lower(), _POSITION_TYPES)} None has no positions.",
            )
        _refuse_unused(
            position_embedding_type, position_embedding_offset, pos_scaling_factor, pos_scaling_type
        )
        if position_embedding_type == "learned":
            length = self._length_of_positions() + position_embedding_offset
            self.position_embeddings = nn.Embedding(length, self.positional_embedding_size, **factory)
        elif position_embedding_type == "fixed":
            self.position_embeddings = FixedPositionEmbeddingLayer(
                self._length_of_positions(),
                self.positional_embedding_size,
                min_timescale,
                max_timescale,
                variant=sinusoid_variant,
                device=device,
            )
        elif position_embedding_type == "rotary":
            self.position_embed_helper = RotaryPositionEmbeddingHelper(
                self._length_of_positions(),
                self._needed("rotary_dim", rotary_dim),
                base=rope_theta,
                scaling_factor=pos_scaling_factor,
                scaling_type=pos_scaling_type,
                scaling_extra_args=pos_scaling_extra_args,
                layout=rotary_layout,
                device=device,
            )
        elif position_embedding_type == "relative":
            self.position_embed_helper = RelativePositionEmbeddingLayer(
                self._needed("num_heads", num_heads),
                relative_attention_bias,
                num_relative_attention_buckets,
                bidirectional,
                initializer,
                max_relative_positions=max_relative_positions,
                **factory,
            )
        elif position_embedding_type == "alibi":
            self.position_embed_helper = AlibiPositionEmbeddingLayer(
                self._needed("num_heads", num_heads),
                alibi_slopes,
                alibi_trainable_slopes,
                initializer,
                pos_scaling_factor,
                **factory,
            )
        self.segment_embeddings: nn.Embedding | None = None
        if num_segments:
            self.segment_embeddings = nn.Embedding(num_segments, self.segment_embedding_size, **factory)
        self.dropout = nn.Dropout(dropout)
        self._fill_tables()

    def _length_of_positions(self) -> int:
        return self._needed("max_position_embeddings", self.max_position_embeddings)

    def _needed(self, name: str, value: int | None) -> int:
        if value is None or value < 1:
            raise UserError(
                f"position_embedding_type={self.position_embedding_type!r} got {name}={value}.",
                "Give a positive number.",
            )
        return value

    def _fill_tables(self) -> None:
        if self.embeddings_initializer is not None:
            self.embeddings_initializer(self.word_embeddings.weight)
        if self.pad_token_id is not None:
            with torch.no_grad():
                self.word_embeddings.weight[self.pad_token_id].zero_()
        if (
            isinstance(self.position_embeddings, nn.Embedding)
            and self.position_embeddings_initializer is not None
        ):
            self.position_embeddings_initializer(self.position_embeddings.weight)
        if self.segment_embeddings is not None:
            self.segment_embeddings_initializer(self.segment_embeddings.weight)

    def reset_parameters(self) -> None:
        """Fills every table anew; the row of the padding token stays zero."""
        if self.embeddings_initializer is None:
            self.word_embeddings.reset_parameters()
        if (
            isinstance(self.position_embeddings, nn.Embedding)
            and self.position_embeddings_initializer is None
        ):
            self.position_embeddings.reset_parameters()
        self._fill_tables()
        helper = self.position_embed_helper
        if isinstance(helper, (RelativePositionEmbeddingLayer, AlibiPositionEmbeddingLayer)):
            helper.reset_parameters()

    @property
    def weight(self) -> Tensor:
        """The word embeddings, under the name that nn.Embedding has for them."""
        return self.word_embeddings.weight

    def get_input_embeddings(self) -> nn.Embedding:
        return self.word_embeddings

    def set_input_embeddings(self, new_embeddings: nn.Embedding) -> None:
        """Replaces the word embeddings, to share those of another layer."""
        self.word_embeddings = new_embeddings

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor | None = None,
        past_length: int = 0,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Turns ids [..., sequence] into embeddings [..., sequence, width].

        The first token stands at `past_length`; `position_ids`, of the ids' shape or one sequence's, says
        otherwise.
        """
        embeddings = self.compute_token_embeddings(input_ids)
        positions = self.compute_positional_embeddings(input_ids, position_ids, past_length, embeddings.dtype)
        if positions is not None:
            embeddings = embeddings + self._of_width(positions, "positional_embedding_size")
        if segment_ids is not None:
            embeddings = embeddings + self._of_width(
                self.compute_segment_embeddings(segment_ids), "segment_embedding_size"
            )
        if self.output_scale != 1.0:
            embeddings = embeddings * self.output_scale
        return self.dropout(embeddings)

    def compute_token_embeddings(self, input_ids: Tensor) -> Tensor:
        """Gives the word embeddings alone, scaled."""
        if input_ids.is_floating_point() or input_ids.dim() == 0:
            raise UserError(
                f"input_ids is a {input_ids.dtype} tensor of shape {tuple(input_ids.shape)}.",
                "Give integer ids of shape [batch, sequence].",
            )
        embeddings = _look_up(self.word_embeddings, input_ids, "Token")
        return embeddings if self.embedding_scale == 1.0 else embeddings * self.embedding_scale

    def compute_positional_embeddings(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        past_length: int = 0,
        dtype: torch.dtype | None = None,
    ) -> Tensor | None:
        """Gives the embeddings of the positions alone, or None where the attention handles them."""
        if self.position_embeddings is None:
            return None
        if position_ids is not None and position_ids.shape not in (input_ids.shape, input_ids.shape[-1:]):
            raise UserError(
                f"position_ids has shape {tuple(position_ids.shape)} and input_ids {tuple(input_ids.shape)}.",
                "Give one position for each token.",
            )
        length = input_ids.shape[-1]
        dtype = self.word_embeddings.weight.dtype if dtype is None else dtype
        if isinstance(self.position_embeddings, FixedPositionEmbeddingLayer):
            return self.position_embeddings(length, position_ids, dtype, past_length=past_length)
        if position_ids is None:
            check_positions(past_length, length, self._length_of_positions())
            position_ids = torch.arange(past_length, past_length + length, device=input_ids.device)
        learned: Tensor = self.position_embeddings(position_ids + self.position_embedding_offset)
        return learned.to(dtype)

    def compute_segment_embeddings(self, segment_ids: Tensor) -> Tensor:
        """Gives the embeddings of the segments alone."""
        if self.segment_embeddings is None:
            raise UserError(
                "segment_ids were given to an embedding without segments.",
                "Give num_segments when it is made.",
            )
        return _look_up(self.segment_embeddings, segment_ids.long(), "Segment")

    def compute_position_bias(
        self, seq_length: int, key_length: int, past_kv: object = None, *, past_length: int | None = None
    ) -> Tensor | None:
        """Gives the bias [1, heads, queries, keys] of relative and ALiBi positions, and None for the others."""
        helper = self.position_embed_helper
        if isinstance(helper, (RelativePositionEmbeddingLayer, AlibiPositionEmbeddingLayer)):
            return helper(seq_length, key_length, past_kv, past_length=past_length)
        return None

    def get_rope_helper(self) -> RotaryPositionEmbeddingHelper | None:
        """Gives what rotates queries and keys, where positions are rotary."""
        helper = self.position_embed_helper
        return helper if isinstance(helper, RotaryPositionEmbeddingHelper) else None

    def _of_width(self, part: Tensor, name: str) -> Tensor:
        if part.shape[-1] != self.embedding_size:
            raise UserError(
                f"{name} is {part.shape[-1]} and embedding_size {self.embedding_size}, so they do not add.",
                "Project the parts (compute_token_embeddings and its like) and add them yourself.",
            )
        return part


def _look_up(table: nn.Embedding, ids: Tensor, what: str) -> Tensor:
    # Only these two index types are taken by every backend's lookup.
    ids = ids if ids.dtype in (torch.int32, torch.int64) else ids.long()
    try:
        embeddings: Tensor = table(ids)
    except IndexError as error:
        num_rows = table.num_embeddings
        first = int(ids[(ids < 0) | (ids >= num_rows)][0])
        raise UserError(
            f"{what} {first} is outside a table of {num_rows}.", f"Give ids from 0 to {num_rows - 1}."
        ) from error
    return embeddings


def _initializer_or_none(spec: InitializerSpec | None) -> Initializer | None:
    return None if spec is None else get_initializer(spec)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"{name} is {size}.", "Give at least 1.")


def _refuse_unused(position_type: str | None, offset: int, scaling_factor: float, scaling_type: str) -> None:
    if offset < 0 or (offset and position_type != "learned"):
        raise UserError(
            f"position_embedding_offset is {offset} for {position_type} positions.",
            "Only learned positions have an offset, and it is not negative.",
        )
    is_linear = str(scaling_type).lower() == "linear"
    if (scaling_factor != 1 and position_type not in ("rotary", "alibi")) or (
        not is_linear and position_type != "rotary"
    ):
        raise UserError(
            f"pos_scaling_factor={scaling_factor:g}, pos_scaling_type={scaling_type!r} for {position_type} positions.",
            "Rotary positions scale in every way, ALiBi linearly, others not at all.",
        )
