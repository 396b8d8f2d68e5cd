"""Positions and segments as layers of their own that add to embeddings, as the model zoo has them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.base import BaseLayer, check_sizes
from portwright.tensorflow.layers.initializers import InitializerSpec, get_initializer
from portwright.tensorflow.layers.look_up import as_ids, look_up_few
from portwright.tensorflow.layers.positions import FixedPositionEmbedding, SinusoidVariant, check_positions

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
