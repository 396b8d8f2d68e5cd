"""Token embeddings with their positions and segments in one layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.base import BaseLayer, check_rate, check_sizes
from portwright.tensorflow.layers.initializers import Initializer, InitializerSpec, get_initializer
from portwright.tensorflow.layers.norms import Dropout
from portwright.tensorflow.layers.positions import (
    AlibiPositionEmbedding,
    FixedPositionEmbedding,
    RelativePositionEmbeddingLayer,
    SinusoidVariant,
    check_positions,
)
from portwright.tensorflow.layers.rotary import RotaryLayout, RotaryPositionEmbeddingHelper


def look_up_few(layer: BaseLayer, table: Any, ids: Any) -> Any:
    """Looks up rows by a product with one-hot vectors: faster for small tables, and the gradient is dense."""
    one_hot = tf.one_hot(as_ids("segment_ids", ids), table.shape[0], dtype=table.dtype)
    return layer.to_compute(tf.tensordot(one_hot, tf.convert_to_tensor(table), 1))


def as_ids(name: str, ids: Any) -> Any:
    """Ids cast to an integer type that all lookup kernels support."""
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer or ids.shape.rank in (None, 0):
        raise UserError(
            f"{name} is {ids.dtype.name} of shape {ids.shape}.",
            "Give integer ids of shape [batch, sequence].",
        )
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int32)


PositionEmbeddingType = Literal["learned", "fixed", "rotary", "relative", "alibi"]
_POSITION_TYPES = ("learned", "fixed", "rotary", "relative", "alibi")


class EmbeddingLayer(BaseLayer):
    """Word embeddings, with learned or fixed positions and segments as options.

    Rotary, relative and ALiBi positions are used in the attention: `get_rope_helper` and `compute_position_bias` return its
    arguments. `embedding_scale` multiplies the word embedding alone, `output_scale` the sum of all parts, and dropout
    comes last. The weights are `word_embeddings`, `position_embeddings` and `segment_embeddings`; the rows that are looked
    up are cast, not the tables.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        pad_token_id: int | None = None,
        embeddings_initializer: InitializerSpec = "uniform",
        max_position_embeddings: int | None = None,
        position_embedding_type: PositionEmbeddingType | None = "learned",
        min_timescale: float = 1.0,
        max_timescale: float = 1e4,
        position_embeddings_initializer: InitializerSpec = "uniform",
        num_segments: int | None = None,
        segment_embeddings_initializer: InitializerSpec = "uniform",
        *,
        dropout: float = 0.0,
        dropout_seed: int | None = None,
        embedding_scale: float = 1.0,
        output_scale: float = 1.0,
        sinusoid_variant: SinusoidVariant = "tutorial",
        position_embedding_offset: int = 0,
        num_heads: int | None = None,
        num_relative_attention_buckets: int = 32,
        max_relative_positions: int = 128,
        bidirectional: bool = False,
        initializer: InitializerSpec = "xavier_uniform",
        rotary_dim: int | None = None,
        rope_theta: float = 10000.0,
        rotary_layout: RotaryLayout = "interleaved",
        alibi_slopes: Sequence[float] | None = None,
        pos_scaling_factor: float = 1.0,
        pos_scaling_type: str = "linear",
        pos_scaling_extra_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(vocab_size=vocab_size, embedding_size=embedding_size, num_segments=num_segments or 1)
        check_rate("dropout", dropout)
        if pad_token_id is not None and not -vocab_size <= pad_token_id < vocab_size:
            raise UserError(
                f"pad_token_id is {pad_token_id} in a vocabulary of {vocab_size}.",
                "Give a token of the vocabulary.",
            )
        for name, scale in (("embedding_scale", embedding_scale), ("output_scale", output_scale)):
            if not math.isfinite(scale):
                raise UserError(f"{name} is {scale}.", "Give a finite number.")
        if position_embedding_type is not None and position_embedding_type not in _POSITION_TYPES:
            raise UserError(
                f"Unknown position embedding type {position_embedding_type!r}.",
                f"{suggest(str(position_embedding_type).lower(), _POSITION_TYPES)} None has no positions.",
            )
        if position_embedding_offset < 0 or (
            position_embedding_offset and position_embedding_type != "learned"
        ):
            raise UserError(
                f"position_embedding_offset is {position_embedding_offset} for {position_embedding_type} positions.",
                "Only learned positions have an offset, and it is not negative.",
            )
        is_plain = pos_scaling_factor == 1 and str(pos_scaling_type).lower() == "linear"
        if not is_plain and position_embedding_type not in ("rotary", "alibi"):
            raise UserError(
                f"pos_scaling_factor={pos_scaling_factor:g}, pos_scaling_type={pos_scaling_type!r} for "
                f"{position_embedding_type} positions.",
                "Rotary positions scale in every way, ALiBi linearly, others not at all.",
            )
        self.vocab_size, self.embedding_size = vocab_size, embedding_size
        self.pad_token_id = None if pad_token_id is None else pad_token_id % vocab_size
        self.num_segments = num_segments
        self.position_embedding_type = position_embedding_type
        self.position_embedding_offset = position_embedding_offset
        self.embedding_scale, self.output_scale = embedding_scale, output_scale
        self.max_position_embeddings = max_position_embeddings or 0
        if position_embedding_type in ("learned", "fixed", "rotary"):
            self._need("max_position_embeddings", max_position_embeddings)
        self.embeddings_initializer = get_initializer(embeddings_initializer)
        self.position_embeddings_initializer = get_initializer(position_embeddings_initializer)
        self.segment_embeddings_initializer = get_initializer(segment_embeddings_initializer)
        self._fixed: FixedPositionEmbedding | None = None
        self._rotary: RotaryPositionEmbeddingHelper | None = None
        self._bias: RelativePositionEmbeddingLayer | AlibiPositionEmbedding | None = None
        if position_embedding_type == "fixed":
            self._fixed = FixedPositionEmbedding(
                self.max_position_embeddings,
                embedding_size,
                min_timescale,
                max_timescale,
                variant=sinusoid_variant,
            )
        elif position_embedding_type == "rotary":
            self._rotary = RotaryPositionEmbeddingHelper(
                self.max_position_embeddings,
                self._need("rotary_dim", rotary_dim),
                rope_theta,
                pos_scaling_factor,
                pos_scaling_type,
                pos_scaling_extra_args,
                layout=rotary_layout,
            )
        elif position_embedding_type == "relative":
            self._bias = RelativePositionEmbeddingLayer(
                self._need("num_heads", num_heads),
                num_relative_attention_buckets,
                bidirectional,
                initializer,
                max_relative_positions=max_relative_positions,
                name="relative_positions",
                dtype=self.policy,
            )
        elif position_embedding_type == "alibi":
            self._bias = AlibiPositionEmbedding(
                self._need("num_heads", num_heads), alibi_slopes, pos_scaling_factor
            )
        self.word_embeddings = self.position_embeddings = self.segment_embeddings = None
        self.dropout = Dropout(dropout, seed=dropout_seed, name="dropout", dtype=self.policy)

    def _need(self, name: str, value: int | None) -> int:
        if value is None:
            raise UserError(
                f"position_embedding_type={self.position_embedding_type!r} got no {name}.", "Give a number."
            )
        check_sizes(**{name: value})
        return value

    def build(self, input_shape: Any) -> None:
        width = self.embedding_size
        words = self.embeddings_initializer
        if self.pad_token_id is not None:
            words = _with_zero_row(words, self.pad_token_id)
        self.word_embeddings = self.add_parameter("word_embeddings", (self.vocab_size, width), words)
        if self.position_embedding_type == "learned":
            length = self.max_position_embeddings + self.position_embedding_offset
            self.position_embeddings = self.add_parameter(
                "position_embeddings", (length, width), self.position_embeddings_initializer
            )
        if self.num_segments:
            self.segment_embeddings = self.add_parameter(
                "segment_embeddings", (self.num_segments, width), self.segment_embeddings_initializer
            )
        super().build(input_shape)

    @property
    def weight(self) -> Any:
        """The table of words, [vocabulary, width], to be shared with an output layer."""
        if self.word_embeddings is None:
            raise UserError("The embedding has no weights yet.", "Call it before its weights are shared.")
        return self.word_embeddings

    def call(
        self,
        input_ids: Any,
        segment_ids: Any = None,
        past_length: int = 0,
        position_ids: Any = None,
        *,
        training: bool = False,
    ) -> Any:
        """Turns ids [batch, sequence] into embeddings [batch, sequence, width].

        The first token stands at `past_length`; `position_ids`, of the ids' shape or one sequence's, says otherwise.
        """
        x = self.compute_token_embeddings(input_ids)
        positions = self.compute_positional_embeddings(input_ids, position_ids, past_length)
        if positions is not None:
            x = x + positions
        if segment_ids is not None:
            x = x + self.compute_segment_embeddings(segment_ids)
        if self.output_scale != 1.0:
            x = x * tf.cast(self.output_scale, x.dtype)
        return self.dropout(x, training=training)

    def compute_token_embeddings(self, input_ids: Any) -> Any:
        """Gives the word embeddings alone, scaled."""
        ids = as_ids("input_ids", input_ids)
        rows = tf.gather(self.weight, ids)
        if self.pad_token_id is not None:  # its row is not trained, as in torch.nn.Embedding
            is_padding = tf.equal(ids, tf.cast(self.pad_token_id, ids.dtype))[..., None]
            rows = tf.where(is_padding, tf.stop_gradient(rows), rows)
        rows = self.to_compute(rows)
        return rows if self.embedding_scale == 1.0 else rows * tf.cast(self.embedding_scale, rows.dtype)

    def compute_positional_embeddings(
        self, input_ids: Any, position_ids: Any = None, past_length: int = 0
    ) -> Any:
        """Gives the embeddings of the positions alone, or None where the attention handles them."""
        if self.position_embedding_type not in ("learned", "fixed"):
            return None
        length = input_ids.shape[-1]
        if position_ids is not None:
            position_ids = as_ids("position_ids", position_ids)
        if self._fixed is not None:
            return self._fixed(length, position_ids, self.compute_dtype, past_length=past_length)
        offset = self.position_embedding_offset
        if position_ids is not None:
            return self.to_compute(tf.gather(self.position_embeddings, position_ids + offset))
        check_positions(past_length, length, self.max_position_embeddings)
        first = past_length + offset
        return self.to_compute(tf.convert_to_tensor(self.position_embeddings)[first : first + length])

    def compute_segment_embeddings(self, segment_ids: Any) -> Any:
        """Gives the embeddings of the segments alone."""
        if self.segment_embeddings is None:
            raise UserError(
                "segment_ids were given to an embedding without segments.",
                "Give num_segments when it is made.",
            )
        return look_up_few(self, self.segment_embeddings, segment_ids)

    def compute_position_bias(
        self, seq_length: int, key_length: int, *, past_length: int | None = None
    ) -> Any:
        """Gives the bias [1, heads, queries, keys] of relative and ALiBi positions, and None for the others."""
        return None if self._bias is None else self._bias(seq_length, key_length, past_length=past_length)

    def get_rope_helper(self) -> RotaryPositionEmbeddingHelper | None:
        """Gives what rotates queries and keys, where positions are rotary."""
        return self._rotary


def _with_zero_row(initializer: Initializer, row: int) -> Initializer:
    def initialize(shape: Any, dtype: Any = None, **kwargs: Any) -> Any:
        table = initializer(shape, dtype=dtype, **kwargs)
        kept = 1.0 - tf.one_hot(row, tf.TensorShape(shape)[0], dtype=table.dtype)
        return table * kept[:, None]

    return initialize


_TYPES = ("learned", "fixed")


class PositionEmbeddingLayer(BaseLayer):
    """Adds learned or fixed positions to embeddings [batch, sequence, width]; the model zoo's layer and weight name."""

    def __init__(
        self,
        max_position_embeddings: int | None = None,
        embedding_type: str = "fixed",
        embeddings_initializer: InitializerSpec = "uniform",
        *,
        sinusoid_variant: SinusoidVariant = "modelzoo",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if embedding_type not in _TYPES:
            raise UserError(
                f"Unknown position embedding type {embedding_type!r}.",
                suggest(str(embedding_type), _TYPES),
            )
        self.max_position_embeddings = max_position_embeddings
        self.embedding_type, self.sinusoid_variant = embedding_type, sinusoid_variant
        self.embeddings_initializer = get_initializer(embeddings_initializer)

    def build(self, input_shape: Any) -> None:
        _, length, width = tf.TensorShape(input_shape).as_list()
        count = self.max_position_embeddings or length
        check_positions(0, length, count or 0)
        self._num_positions = count
        if self.embedding_type == "learned":
            self.position_embeddings = self.add_parameter(
                "position_embedding_weights", (count, width), self.embeddings_initializer
            )
        else:
            self._fixed = FixedPositionEmbedding(count, width, variant=self.sinusoid_variant)
        super().build(input_shape)

    def call(self, inputs: Any, position_ids: Any = None) -> Any:
        x = self.to_compute(inputs)
        length = x.shape[1]
        if self.embedding_type == "fixed":
            return x + self._fixed(length, position_ids, x.dtype)
        if position_ids is not None:
            ids = as_ids("position_ids", position_ids)
            return x + self.to_compute(tf.gather(self.position_embeddings, ids))
        check_positions(0, length, self._num_positions)
        return x + self.to_compute(tf.convert_to_tensor(self.position_embeddings)[:length])


class SegmentEmbeddingLayer(BaseLayer):
    """Adds the embeddings of segments to embeddings [batch, sequence, width]; the model zoo's layer and weight name."""

    def __init__(
        self, num_segments: int = 2, embeddings_initializer: InitializerSpec = "uniform", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(num_segments=num_segments)
        self.num_segments = num_segments
        self.embeddings_initializer = get_initializer(embeddings_initializer)

    def build(self, input_shape: Any) -> None:
        shape = (self.num_segments, tf.TensorShape(input_shape)[-1])
        self.segment_embeddings = self.add_parameter(
            "segment_embedding_weights", shape, self.embeddings_initializer
        )
        super().build(input_shape)

    def call(self, inputs: Any, segment_ids: Any) -> Any:
        return self.to_compute(inputs) + look_up_few(self, self.segment_embeddings, segment_ids)
