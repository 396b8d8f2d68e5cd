"""Multi-head attention, also with keys and values that heads share: torch.nn's interface and numbers, one projection, one fused kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from portwright.errors import UserError, suggest
from portwright.layers.bias import attend, attend_with_weights, make_attention_bias
from portwright.layers.cache import KeyValue, KVCache, as_cache
from portwright.layers.initializers import InitializerSpec, get_initializer
from portwright.layers.norms import get_norm

ATTENTION_TYPES = ("scaled_dot_product", "dot_product", "scaled_cosine")

_MAX_LOG_COSINE_SCALE = math.log(100.0)  # Swin v2, arXiv 2111.09883, keeps the temperature above 0.01


class RotaryEmbedding(Protocol):
    """Rotates [batch, heads, sequence, width] by the positions of its tokens."""

    def rotate_tensor(self, x: Tensor, offset: int = 0, position_ids: Tensor | None = None) -> Tensor: ...


class MultiheadAttention(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention on fused kernels, with the model zoo's options as keywords.

    Arguments, results, parameter names and initial weights are torch's. Three things differ: a query to which every
    key is masked gets zeros instead of NaN; `is_causal` needs no mask; attn_mask may have four dimensions.

    The keywords: `inner_dim`, the width of all heads together; `use_projection_bias` and `use_ffn_bias`, whether
    the projections to and from the heads have biases (None: as `bias` says); initializers, by name, dict or function
    (None: torch's), of which `attention_q_initializer` and `output_layer_initializer` stand in for
    `attention_initializer`; `attention_type`; `scale_qk_dot_by_d`, scores over d instead of its root;
    `attention_logits_alpha`, a factor of the scores; `attention_qk_norm_layer`, a norm of each head's queries and
    keys.
    """

    # Class attributes, which torch's module lacks, so that an instance of torch's class can become one of ours.
    attention_type: str = "scaled_dot_product"
    attention_scale: float | None = None  # None: one over the root of the head width
    num_kv_groups: int | None = None  # None: each head has keys and values of its own
    has_qk_norm: bool = False
    attention_initializer: InitializerSpec | None = None
    attention_q_initializer: InitializerSpec | None = None
    output_layer_initializer: InitializerSpec | None = None
    bias_initializer: InitializerSpec | None = None

    logits_scale: nn.Parameter
    q_norm: nn.Module
    k_norm: nn.Module

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        inner_dim: int | None = None,
        use_projection_bias: bool | None = None,
        use_ffn_bias: bool | None = None,
        attention_initializer: InitializerSpec | None = None,
        attention_q_initializer: InitializerSpec | None = None,
        output_layer_initializer: InitializerSpec | None = None,
        bias_initializer: InitializerSpec | None = None,
        attention_type: str = "scaled_dot_product",
        scale_qk_dot_by_d: bool = False,
        attention_logits_alpha: float = 1.0,
        attention_qk_norm_layer: str | Callable[..., nn.Module] | None = None,
        attention_qk_norm_eps: float = 1e-5,
    ) -> None:
        nn.Module.__init__(self)  # not that of torch's class, which would make parameters of other shapes
        inner_dim = embed_dim if inner_dim is None else inner_dim
        if embed_dim < 1 or num_heads < 1 or inner_dim < 1 or inner_dim % num_heads:
            raise UserError(
                f"embed_dim={embed_dim}, inner_dim={inner_dim} and num_heads={num_heads} do not fit.",
                "All must be above 0, and the heads must divide the inner width (embed_dim unless given).",
            )
        if attention_type not in ATTENTION_TYPES:
            raise UserError(
                f"Unknown attention_type {attention_type!r}.", suggest(str(attention_type), ATTENTION_TYPES)
            )
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.num_heads = num_heads
        self.head_dim = inner_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.add_zero_attn = add_zero_attn
        self.attention_type = attention_type
        self.attention_scale = self._make_scale(scale_qk_dot_by_d, attention_logits_alpha)
        self.attention_initializer = attention_initializer
        self.attention_q_initializer = attention_q_initializer
        self.output_layer_initializer = output_layer_initializer
        self.bias_initializer = bias_initializer

        def register(name: str, wanted: bool, *shape: int) -> None:
            tensor = torch.empty(shape, device=device, dtype=dtype) if wanted else None
            self.register_parameter(name, None if tensor is None else nn.Parameter(tensor))

        q_width, kv_width = self._widths()
        has_bias = bias if use_projection_bias is None else use_projection_bias
        register("q_proj_weight", not self._qkv_same_embed_dim, q_width, embed_dim)
        register("k_proj_weight", not self._qkv_same_embed_dim, kv_width, self.kdim)
        register("v_proj_weight", not self._qkv_same_embed_dim, kv_width, self.vdim)
        register("in_proj_weight", self._qkv_same_embed_dim, q_width + 2 * kv_width, embed_dim)
        register("in_proj_bias", has_bias, q_width + 2 * kv_width)
        self.out_proj = NonDynamicallyQuantizableLinear(
            inner_dim,
            embed_dim,
            bias=bias if use_ffn_bias is None else use_ffn_bias,
            device=device,
            dtype=dtype,
        )
        register("bias_k", add_bias_kv, 1, 1, kv_width)
        register("bias_v", add_bias_kv, 1, 1, kv_width)
        if attention_type == "scaled_cosine":
            register("logits_scale", True, num_heads, 1, 1)
        if attention_qk_norm_layer is not None:
            make_norm = get_norm(attention_qk_norm_layer)
            self.has_qk_norm = True
            self.q_norm = make_norm(self.head_dim, eps=attention_qk_norm_eps, device=device, dtype=dtype)
            self.k_norm = make_norm(self.head_dim, eps=attention_qk_norm_eps, device=device, dtype=dtype)
        self._reset_parameters()

    def _make_scale(self, by_d: bool, alpha: float) -> float | None:
        if self.attention_type != "scaled_dot_product":
            return alpha
        if not by_d and alpha == 1.0:
            return None
        return alpha / float(self.head_dim if by_d else math.sqrt(self.head_dim))

    def _widths(self) -> tuple[int, int]:
        """The widths of queries, and of keys or values, over all heads."""
        return self.num_heads * self.head_dim, (self.num_kv_groups or self.num_heads) * self.head_dim

    def _input_widths(self) -> tuple[int, int, int]:
        return self.embed_dim, self.kdim, self.vdim

    def _split_weight(self) -> tuple[Tensor, Tensor, Tensor]:
        """The weights that make queries, keys and values."""
        if self.in_proj_weight is None:
            return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        q_width, kv_width = self._widths()
        q_weight, k_weight, v_weight = self.in_proj_weight.split_with_sizes((q_width, kv_width, kv_width))
        return q_weight, k_weight, v_weight

    def _reset_parameters(self) -> None:
        # In torch's order, so that the same seed gives the same weights; torch initializes one packed matrix.
        spec, q_spec = self.attention_initializer, self.attention_q_initializer or self.attention_initializer
        if self.in_proj_weight is not None and spec is None and q_spec is None:
            nn.init.xavier_uniform_(self.in_proj_weight)
        else:
            for weight, of_weight in zip(self._split_weight(), (q_spec, spec, spec), strict=True):
                get_initializer(of_weight or "xavier_uniform")(weight.detach())
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                get_initializer(self.bias_initializer or "zeros")(bias.detach())
        output_spec = self.output_layer_initializer or spec
        if output_spec is not None:
            get_initializer(output_spec)(self.out_proj.weight.detach())
        if self.bias_k is not None and self.bias_v is not None:
            nn.init.xavier_normal_(self.bias_k)
            nn.init.xavier_normal_(self.bias_v)
        if self.attention_type == "scaled_cosine":
            nn.init.constant_(self.logits_scale, math.log(10.0))
        if self.has_qk_norm:
            for norm in (self.q_norm, self.k_norm):
                reset = getattr(norm, "reset_parameters", None)
                if reset is not None:
                    reset()

    def reset_parameters(self) -> None:
        """Draws all weights anew, as the constructor did."""
        self.out_proj.reset_parameters()
        self._reset_parameters()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        past_kv: KVCache | KeyValue | None = None,
        cache_present_kv: bool = False,
        past_kv_self_attn: bool = True,
        position_bias: Tensor | None = None,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Any, ...]:
        """Returns the output and the weights (None unless `need_weights`), and with `cache_present_kv` the cache.

        `past_kv` is a KVCache, which is extended in place, or keys and values, which precede the new ones; with
        `past_kv_self_attn=False` they replace them. `position_bias` is added to the scores and has shape
        [heads, queries, keys], or four dimensions. After a cache `is_causal` lets the last query see all keys.
        """
        cache = None if past_kv is None else as_cache(past_kv)
        num_held = 0 if cache is None else cache.length
        is_memory_held = num_held > 0 and not past_kv_self_attn
        is_batched = check_inputs(query, None if is_memory_held else key, value, self._input_widths())
        if not is_batched:
            query, key, value = add_batch(query, *((query, query) if is_memory_held else (key, value)))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        # Without a batch dimension the sequence comes first, whatever batch_first is.
        seq_first = is_batched and not self.batch_first
        num_past = num_held if past_kv_self_attn else 0
        rotary = rotary_position_embedding_helper

        if is_memory_held and cache is not None:
            q = self._project_query(query, seq_first)
            k, v = cache.held
        else:
            q, k, v = self._project(query, key, value, seq_first)
            if rotary is not None:
                k = rotary.rotate_tensor(k, offset=num_past, position_ids=position_ids)
            k, v = (k, v) if cache is None else cache.append(k, v)
        if rotary is not None:
            q = rotary.rotate_tensor(q, offset=num_past, position_ids=position_ids)
        check_batches(q, k, self.batch_first)
        present_kv: KVCache | KeyValue = past_kv if isinstance(past_kv, KVCache) else (k, v)
        k, v, num_appended = self._append_learned(k, v)

        bias, kernel_is_causal = make_attention_bias(
            attn_mask,
            key_padding_mask,
            position_bias,
            is_causal,
            q=q,
            num_keys=k.shape[2],
            num_past=num_past,
            num_appended=num_appended,
            need_tensor=need_weights,
        )
        output, weights = self._attend(
            q, k, v, bias, kernel_is_causal, need_weights, average_attn_weights, seq_first
        )
        if not is_batched:
            output, weights = output[0], None if weights is None else weights[0]
        return (output, weights, present_kv) if cache_present_kv else (output, weights)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        is_causal: bool,
        need_weights: bool,
        average_attn_weights: bool,
        seq_first: bool,
    ) -> tuple[Tensor, Tensor | None]:
        dropout = self.dropout if self.training else 0.0
        scale = self.attention_scale
        weights: Tensor | None = None
        if need_weights:
            heads, weights = attend_with_weights(q, k, v, bias, dropout=dropout, scale=scale)
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            heads = attend(q, k, v, bias, is_causal=is_causal, dropout=dropout, scale=scale)
        # Kernels keep the memory layout of the queries, so that this is a view and not a copy.
        merged = (heads.permute(2, 0, 1, 3) if seq_first else heads.transpose(1, 2)).flatten(2)
        return self.out_proj(merged), weights

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor, seq_first: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, heads, sequence, width], by as few products as the inputs allow."""
        num_q, num_kv = self.num_heads, self.num_kv_groups or self.num_heads
        q_width, kv_width = self._widths()
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if weight is not None and query is key and key is value:
            packed = _split_heads(F.linear(query, weight, bias), num_q + 2 * num_kv)
            q, k, v = packed.split_with_sizes((num_q, num_kv, num_kv), dim=2)
        elif weight is not None and key is value:
            q_weight, kv_weight = weight.split_with_sizes((q_width, 2 * kv_width))
            q_bias, kv_bias = (None, None) if bias is None else bias.split_with_sizes((q_width, 2 * kv_width))
            q = _split_heads(F.linear(query, q_weight, q_bias), num_q)
            k, v = _split_heads(F.linear(key, kv_weight, kv_bias), 2 * num_kv).split_with_sizes(
                (num_kv, num_kv), dim=2
            )
        else:
            q_weight, k_weight, v_weight = self._split_weight()
            split = (
                (None, None, None) if bias is None else bias.split_with_sizes((q_width, kv_width, kv_width))
            )
            q = _split_heads(F.linear(query, q_weight, split[0]), num_q)
            k = _split_heads(F.linear(key, k_weight, split[1]), num_kv)
            v = _split_heads(F.linear(value, v_weight, split[2]), num_kv)
        order = (1, 2, 0, 3) if seq_first else (0, 2, 1, 3)
        return self._normed_query(q.permute(order)), self._normed_key(k.permute(order)), v.permute(order)

    def _project_query(self, query: Tensor, seq_first: bool) -> Tensor:
        bias = None if self.in_proj_bias is None else self.in_proj_bias[: self._widths()[0]]
        q = _split_heads(F.linear(query, self._split_weight()[0], bias), self.num_heads)
        return self._normed_query(q.permute((1, 2, 0, 3) if seq_first else (0, 2, 1, 3)))

    def _normed_query(self, q: Tensor) -> Tensor:
        if self.has_qk_norm:
            q = self.q_norm(q)
        if self.attention_type == "scaled_cosine":
            q = F.normalize(q, dim=-1) * self.logits_scale.clamp(max=_MAX_LOG_COSINE_SCALE).exp()
        return q

    def _normed_key(self, k: Tensor) -> Tensor:
        if self.has_qk_norm:
            k = self.k_norm(k)
        return F.normalize(k, dim=-1) if self.attention_type == "scaled_cosine" else k

    def _append_learned(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Appends the layer's own keys and values, and gives their number."""
        num_before = k.shape[2]
        if self.bias_k is not None and self.bias_v is not None:
            shape = (k.shape[0], k.shape[1], 1, k.shape[3])
            k = torch.cat((k, self.bias_k.view(1, shape[1], 1, shape[3]).expand(shape).to(k.dtype)), dim=2)
            v = torch.cat((v, self.bias_v.view(1, shape[1], 1, shape[3]).expand(shape).to(v.dtype)), dim=2)
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        return k, v, k.shape[2] - num_before

    def extra_repr(self) -> str:
        parts = [f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}"]
        if self.num_kv_groups is not None:
            parts.append(f"num_kv_groups={self.num_kv_groups}")
        if self.attention_type != "scaled_dot_product":
            parts.append(f"attention_type={self.attention_type!r}")
        return ", ".join(parts)


def _split_heads(x: Tensor, num_heads: int) -> Tensor:
    return x.view(x.shape[0], x.shape[1], num_heads, x.shape[2] // num_heads)


class MultiQueryAttention(MultiheadAttention):
    """Attention in which groups of heads share their keys and values; with one group all heads do.

    Arguments and results are MultiheadAttention's. The packed weight holds the queries of all heads, then the keys
    and the values of the groups.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *args: Any, num_kv_groups: int = 1, **kwargs: Any
    ) -> None:
        # Set before the parameters, whose shapes depend on it.
        self.num_kv_groups = check_kv_groups(num_heads, num_kv_groups)
        super().__init__(embed_dim, num_heads, *args, **kwargs)


def check_kv_groups(num_heads: int, num_kv_groups: int) -> int:
    """The number of groups; refused unless it divides the number of heads."""
    if num_kv_groups < 1 or num_heads < 1 or num_heads % num_kv_groups:
        raise UserError(
            f"num_kv_groups={num_kv_groups} does not divide num_heads={num_heads}.",
            "Give a number of groups that does.",
        )
    return num_kv_groups


def check_inputs(query: Tensor, key: Tensor | None, value: Tensor, widths: tuple[int, int, int]) -> bool:
    """Whether the inputs have a batch dimension; without a key (from a cache) only the query is checked."""
    if key is None:
        key, value, widths = query, query, (widths[0], widths[0], widths[0])
    if query.is_nested or key.is_nested or value.is_nested:
        raise UserError(
            "A nested tensor was given to attention.",
            "Give a padded tensor (torch.nested.to_padded_tensor) and a key_padding_mask.",
        )
    dim = query.dim()
    if dim not in (2, 3) or key.dim() != dim or value.dim() != dim:
        raise UserError(
            f"query, key and value have {dim}, {key.dim()} and {value.dim()} dimensions.",
            "Give each 3 (with a batch) or each 2 (without).",
        )
    received = (query.shape[-1], key.shape[-1], value.shape[-1])
    if received != widths:
        raise UserError(f"query, key and value have widths {received}.", f"This layer was made for {widths}.")
    if key.shape[:-1] != value.shape[:-1]:
        raise UserError(
            f"key and value have shapes {tuple(key.shape)} and {tuple(value.shape)}.",
            "Give both the same sequence length and batch.",
        )
    return dim == 3


def add_batch(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Adds a batch dimension of 1; equal objects stay one object, which the projection tests for."""
    batched_query = query[None]
    batched_key = batched_query if key is query else key[None]
    if value is key:
        return batched_query, batched_key, batched_key
    return batched_query, batched_key, value[None]


def check_batches(q: Tensor, k: Tensor, batch_first: bool) -> None:
    """Refuses a query and keys of different batch sizes, since a kernel would broadcast a size of 1."""
    if q.shape[0] != k.shape[0]:
        raise UserError(
            f"query and key have batches of {q.shape[0]} and {k.shape[0]}.",
            f"Give both the same; batch_first is {batch_first}.",
        )
