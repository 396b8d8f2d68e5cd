"""Multi-head attention: torch.nn's arguments and numbers, with the model zoo's options as keywords."""

from __future__ import annotations

import math
from typing import Any, Protocol

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.base import BaseLayer, check_rate, check_sizes, shape_of, wide_type
from portwright.tensorflow.layers.dense import Dense
from portwright.tensorflow.layers.initializers import InitializerSpec, get_initializer
from portwright.tensorflow.layers.masks import (
    attn_mask_to_4d,
    create_autoregressive_mask,
    key_padding_mask_to_4d,
    merge_masks,
)
from portwright.tensorflow.layers.norms import Dropout, NormFactory, get_norm

ATTENTION_TYPES = ("scaled_dot_product", "dot_product", "scaled_cosine")

_MAX_LOG_COSINE_SCALE = math.log(100.0)  # Swin v2 (arXiv 2111.09883) keeps the temperature above 0.01

KeyValue = tuple[Any, Any]
"""Keys and values, each [batch, heads, keys, width]."""


class RotaryEmbedding(Protocol):
    """Turns [batch, heads, sequence, width] by the positions of its tokens."""

    def rotate_tensor(self, x: Any, offset: int = 0, position_ids: Any = None) -> Any: ...


class MultiheadAttention(BaseLayer):
    """Attention over [batch, sequence, width], with projections `query`, `key`, `value` and `output`.

    Arguments are those of the PyTorch layer, but the batch always comes first. A query to which every key is masked
    gets zeros; scores and softmax are float32 or wider. `inner_dim` is the width of all heads together;
    `num_kv_groups` shares keys and values between heads; `use_projection_bias` and `use_ffn_bias` say whether the
    projections to and from the heads have biases (None: as `bias` says); `scale_qk_dot_by_d` divides scores by the
    head width instead of its root; `attention_qk_norm_layer` is a norm of each head's queries and keys.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        inner_dim: int | None = None,
        num_kv_groups: int | None = None,
        use_projection_bias: bool | None = None,
        use_ffn_bias: bool | None = None,
        attention_initializer: InitializerSpec = "xavier_uniform",
        attention_q_initializer: InitializerSpec | None = None,
        output_layer_initializer: InitializerSpec | None = None,
        bias_initializer: InitializerSpec = "zeros",
        attention_type: str = "scaled_dot_product",
        scale_qk_dot_by_d: bool = False,
        attention_logits_alpha: float = 1.0,
        attention_qk_norm_layer: str | NormFactory | None = None,
        attention_qk_norm_eps: float = 1e-5,
        dropout_seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        inner_dim = embed_dim if inner_dim is None else inner_dim
        num_kv = num_heads if num_kv_groups is None else num_kv_groups
        check_sizes(embed_dim=embed_dim, num_heads=num_heads, inner_dim=inner_dim, num_kv_groups=num_kv)
        if inner_dim % num_heads or num_heads % num_kv:
            raise UserError(
                f"embed_dim={embed_dim}, inner_dim={inner_dim}, num_heads={num_heads} and num_kv_groups={num_kv} do not fit.",
                "The heads must divide the inner width (embed_dim unless given), and the groups the heads.",
            )
        if attention_type not in ATTENTION_TYPES:
            raise UserError(
                f"Unknown attention_type {attention_type!r}.", suggest(str(attention_type), ATTENTION_TYPES)
            )
        self.embed_dim, self.num_heads, self.num_kv = embed_dim, num_heads, num_kv
        self.head_dim = inner_dim // num_heads
        self.dropout_rate = check_rate("dropout", dropout)
        divisor = 1.0
        if attention_type == "scaled_dot_product":
            divisor = float(self.head_dim) if scale_qk_dot_by_d else math.sqrt(self.head_dim)
        self.scale = attention_logits_alpha / divisor
        self.is_cosine = attention_type == "scaled_cosine"
        self.logits_scale = self.q_norm = self.k_norm = None
        if attention_qk_norm_layer is not None:
            make_norm = get_norm(attention_qk_norm_layer)
            self.q_norm = make_norm(eps=attention_qk_norm_eps, name="q_norm", dtype=self.policy)
            self.k_norm = make_norm(eps=attention_qk_norm_eps, name="k_norm", dtype=self.policy)

        def project(name: str, units: int, has_bias: bool | None, spec: InitializerSpec | None) -> Dense:
            return Dense(
                units,
                use_bias=bias if has_bias is None else has_bias,
                kernel_initializer=spec or attention_initializer,
                bias_initializer=bias_initializer,
                name=name,
                dtype=self.policy,
            )

        self.query = project("query", inner_dim, use_projection_bias, attention_q_initializer)
        self.key = project("key", num_kv * self.head_dim, use_projection_bias, None)
        self.value = project("value", num_kv * self.head_dim, use_projection_bias, None)
        self.output_projection = project("output", embed_dim, use_ffn_bias, output_layer_initializer)
        self.attention_dropout = Dropout(dropout, seed=dropout_seed, name="dropout", dtype=self.policy)

    def build(self, input_shape: Any) -> None:
        if self.is_cosine:
            start = get_initializer({"name": "constant", "val": math.log(10.0)})
            self.logits_scale = self.add_parameter("logits_scale", (self.num_heads, 1, 1), start)
        super().build(input_shape)

    def call(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        past_kv: KeyValue | None = None,
        cache_present_kv: bool = False,
        position_bias: Any = None,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        position_ids: Any = None,
        training: bool = False,
    ) -> tuple[Any, ...]:
        """Returns the output and the weights (None unless `need_weights`), and with `cache_present_kv` keys and values.

        `key` is the query unless given (self attention), and `value` the key. `past_kv` comes before the new keys and
        values. `position_bias` is added to the scores: [heads, queries, keys], or four dimensions.
        """
        key = query if key is None else key
        value = key if value is None else value
        self._check(query, key, value)
        q = self._split(self.query(query), self.num_heads)
        k, v = self._split(self.key(key), self.num_kv), self._split(self.value(value), self.num_kv)
        q, k = self._normed(q, k)
        num_past = 0 if past_kv is None else _known(past_kv[0].shape[2], "keys of past_kv")
        if rotary_position_embedding_helper is not None:
            rotate = rotary_position_embedding_helper.rotate_tensor
            q = rotate(q, offset=num_past, position_ids=position_ids)
            k = rotate(k, offset=num_past, position_ids=position_ids)
        if past_kv is not None:
            k = tf.concat([self.to_compute(past_kv[0]), k], axis=2)
            v = tf.concat([self.to_compute(past_kv[1]), v], axis=2)
        present = (k, v)
        masks = []
        scores_shape = (q.shape[0] or k.shape[0], self.num_heads, q.shape[2], k.shape[2])
        if attn_mask is not None:
            masks.append(attn_mask_to_4d(attn_mask, scores_shape))
        elif is_causal and not (num_past and q.shape[2] == 1):
            num_queries = _known(q.shape[2], "queries of causal attention")
            num_keys = _known(k.shape[2], "keys of causal attention")
            masks.append(create_autoregressive_mask(num_queries, num_keys, num_past)[None, None])
        if key_padding_mask is not None:
            masks.append(key_padding_mask_to_4d(key_padding_mask, scores_shape))
        # With a causal mask alone every query sees at least its own key: no row is fully masked.
        all_see = attn_mask is None and key_padding_mask is None
        output, weights = self._attend(q, k, v, masks, position_bias, all_see, training)
        if not need_weights:
            weights = None
        elif average_attn_weights:
            weights = tf.reduce_mean(weights, axis=1)
        return (output, weights, present) if cache_present_kv else (output, weights)

    def _attend(
        self, q: Any, k: Any, v: Any, masks: list[Any], position_bias: Any, all_see: bool, training: bool
    ) -> tuple[Any, Any]:
        if self.num_kv != self.num_heads:
            k, v = (tf.repeat(x, self.num_heads // self.num_kv, axis=1) for x in (k, v))
        wide = wide_type(self.compute_dtype)
        if position_bias is not None and position_bias.shape.rank == 3:
            position_bias = position_bias[None]
        # Queries are scaled before the product, which could overflow in float16 otherwise.
        scores = tf.cast(tf.matmul(q * tf.cast(self.scale, q.dtype), k, transpose_b=True), wide)
        additive, sees = merge_masks(masks, position_bias, wide)
        weights = self.to_compute(tf.nn.softmax(scores if additive is None else scores + additive, axis=-1))
        heads = tf.matmul(self.attention_dropout(weights, training=training), v)
        if sees is not None and not all_see:
            # The outputs are zeroed rather than the attention weights: they are smaller, and the weights are rarely used.
            heads, weights = heads * self.to_compute(sees), weights * self.to_compute(sees)
        batch, _, length, _ = shape_of(heads)
        merged = tf.reshape(
            tf.transpose(heads, [0, 2, 1, 3]), [batch, length, self.num_heads * self.head_dim]
        )
        return self.output_projection(merged), weights

    def _normed(self, q: Any, k: Any) -> tuple[Any, Any]:
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.logits_scale is not None:
            factor = tf.exp(tf.minimum(self.to_compute(self.logits_scale), _MAX_LOG_COSINE_SCALE))
            q, k = _unit(q) * factor, _unit(k)
        return q, k

    def _split(self, x: Any, num_heads: int) -> Any:
        batch, length, _ = shape_of(x)
        return tf.transpose(tf.reshape(x, [batch, length, num_heads, self.head_dim]), [0, 2, 1, 3])

    def _check(self, query: Any, key: Any, value: Any) -> None:
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.shape.rank != 3:
                raise UserError(f"{name} has shape {x.shape}.", "Give it [batch, sequence, width].")
        if query.shape[-1] != self.embed_dim:
            raise UserError(f"query has shape {query.shape}.", f"embed_dim is {self.embed_dim}.")
        if not key.shape[:2].is_compatible_with(value.shape[:2]) or not key.shape[:1].is_compatible_with(
            query.shape[:1]
        ):
            raise UserError(
                f"query, key and value have shapes {query.shape}, {key.shape} and {value.shape}.",
                "Give all the same batch, and keys and values the same length.",
            )


class MultiQueryAttention(MultiheadAttention):
    """Attention whose heads share keys and values: all of them one pair, or `num_kv_groups` pairs."""

    def __init__(
        self, embed_dim: int, num_heads: int, *args: Any, num_kv_groups: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(embed_dim, num_heads, *args, num_kv_groups=num_kv_groups, **kwargs)


def _unit(x: Any) -> Any:
    """Vectors scaled to length 1, computed so that float16 does not overflow; a vector of zeros stays zero."""
    wide = tf.cast(x, wide_type(x.dtype))
    square = tf.reduce_sum(tf.square(wide), axis=-1, keepdims=True)
    return tf.cast(wide * tf.math.rsqrt(tf.maximum(square, 1e-24)), x.dtype)


def _known(size: Any, what: str) -> int:
    if size is None:
        raise UserError(
            f"The number of {what} is unknown.", "Give tensors of static length, or an attn_mask."
        )
    return int(size)
