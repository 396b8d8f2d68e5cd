"""Attention whose keys and values are mixed down to a fixed number along the sequence (arXiv 2006.04768)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.attention import MultiheadAttention
from portwright.tensorflow.layers.base import check_sizes
from portwright.tensorflow.layers.initializers import InitializerSpec, get_initializer
from portwright.tensorflow.layers.masks import key_padding_mask_to_4d

SHARE_STYLES = ("no-share", "share-headwise", "share-kv", "share-layerwise")

_MASKED_BELOW = -100.0  # values of a float mask below this count as masked


class LinformerAttention(MultiheadAttention):
    """Attention over `reduced_kv_len_dim` mixtures of up to `kv_len` keys and values.

    A mixture has no position: attn_mask, causal masks, position biases and caches are refused. Padding does not enter
    the mixtures; shorter sequences use the first columns of the mixing matrices,
    [matrices, reduced_kv_len_dim, kv_len].

    `param_share_style` says which share a mixing matrix: none, the heads, also keys with values, or also all layers,
    to each of which the same matrix is then given by `tie_kernel_projections`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *args: Any,
        kv_len: int = 256,
        reduced_kv_len_dim: int = 64,
        projection_kernel_initializer: InitializerSpec = "xavier_uniform",
        param_share_style: str = "no-share",
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        if param_share_style not in SHARE_STYLES:
            raise UserError(
                f"Unknown param_share_style {param_share_style!r}.",
                suggest(str(param_share_style), SHARE_STYLES),
            )
        check_sizes(kv_len=kv_len, reduced_kv_len_dim=reduced_kv_len_dim)
        if self.num_kv != num_heads:
            raise UserError(
                "num_kv_groups has no meaning for mixed keys.", "Leave it out of LinformerAttention."
            )
        self.kv_len, self.reduced_kv_len_dim = kv_len, reduced_kv_len_dim
        self.param_share_style = param_share_style
        self.projection_kernel_initializer = get_initializer(projection_kernel_initializer)
        self.key_projection_kernel: Any = None
        self.value_projection_kernel: Any = None

    def build(self, input_shape: Any) -> None:
        style = self.param_share_style
        if style != "share-layerwise":
            num_kernels = self.num_heads if style == "no-share" else 1
            shape = (num_kernels, self.reduced_kv_len_dim, self.kv_len)

            def draw(shape: Any, dtype: Any = None, **kwargs: Any) -> Any:
                count, *matrix = tf.TensorShape(shape).as_list()
                # [reduced, length] is [out, in] here, and an initializer takes [in, out].
                drawn = [
                    self.projection_kernel_initializer(matrix[::-1], dtype=dtype, **kwargs)
                    for _ in range(count)
                ]
                return tf.transpose(tf.stack(drawn), [0, 2, 1])

            self.key_projection_kernel = self.add_parameter("key_projection_kernel", shape, draw)
            if style != "share-kv":
                self.value_projection_kernel = self.add_parameter("value_projection_kernel", shape, draw)
        super().build(input_shape)

    def tie_kernel_projections(self, kernel: Any) -> None:
        """Takes the mixing matrix that all layers share, of shape [1, reduced_kv_len_dim, kv_len]."""
        if self.param_share_style != "share-layerwise":
            raise UserError(
                f"A kernel was to be tied with param_share_style={self.param_share_style!r}.",
                "Make the layer with 'share-layerwise'.",
            )
        expected = (1, self.reduced_kv_len_dim, self.kv_len)
        if tuple(kernel.shape) != expected:
            raise UserError(f"The kernel has shape {kernel.shape}.", f"Give {expected}.")
        # Stored so that Keras does not track it: the weight belongs to the layer that made it.
        object.__setattr__(self, "_tied", kernel)

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
        training: bool = False,
        **refused: Any,
    ) -> tuple[Any, ...]:
        """Returns the output, and the weights over the mixtures if `need_weights`."""
        used = [name for name, given in refused.items() if given is not None and given is not False]
        if attn_mask is not None or is_causal or used:
            given = "attn_mask" if attn_mask is not None else "is_causal" if is_causal else used[0]
            raise UserError(
                f"{given} has no meaning for mixed keys.", "Use key_padding_mask, or MultiheadAttention."
            )
        key = query if key is None else key
        value = key if value is None else value
        self._check(query, key, value)
        length = key.shape[1]
        if length is None or length > self.kv_len:
            raise UserError(
                f"There are {length or 'an unknown number of'} keys and kv_len is {self.kv_len}.",
                "Give keys of a static length up to kv_len.",
            )
        q = self._split(self.query(query), self.num_heads)
        k, v = self._split(self.key(key), self.num_heads), self._split(self.value(value), self.num_heads)
        q, k = self._normed(q, k)
        if key_padding_mask is not None:
            padding = key_padding_mask_to_4d(
                key_padding_mask, (q.shape[0], self.num_heads, q.shape[2], length)
            )
            # Other layers add a float mask to scores; here a key is either kept or left out.
            if padding.dtype != tf.bool:
                padding = padding < _MASKED_BELOW
            padding = tf.transpose(padding, [0, 1, 3, 2])
            k, v = (tf.where(padding, tf.zeros([], x.dtype), x) for x in (k, v))
        key_kernel = self.key_projection_kernel
        if self.param_share_style == "share-layerwise":
            key_kernel = getattr(self, "_tied", None)
            if key_kernel is None:
                raise UserError(
                    "No mixing matrix was given.", "Call tie_kernel_projections on each layer first."
                )
        value_kernel = key_kernel if self.value_projection_kernel is None else self.value_projection_kernel
        k = tf.matmul(self.to_compute(key_kernel)[..., :length], k)
        v = tf.matmul(self.to_compute(value_kernel)[..., :length], v)
        output, weights = self._attend(q, k, v, [], None, True, training)
        if not need_weights:
            return output, None
        return output, tf.reduce_mean(weights, axis=1) if average_attn_weights else weights
