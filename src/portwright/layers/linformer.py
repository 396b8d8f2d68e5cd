"""Attention whose keys and values are mixed down to a fixed number along the sequence (arXiv 2006.04768)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UserError, suggest
from portwright.layers.attention import MultiheadAttention, add_batch, check_batches, check_inputs
from portwright.layers.initializers import InitializerSpec, get_initializer

SHARE_STYLES = ("no-share", "share-headwise", "share-kv", "share-layerwise")

_MASKED_BELOW = -100.0  # a float mask below this counts as masked


class LinformerAttention(MultiheadAttention):
    """Attention over `reduced_kv_len_dim` mixtures of up to `kv_len` keys and values.

    A mixture has no position, so that attn_mask, causal masks, position biases and caches are refused. Padding does not
    enter the mixtures; shorter sequences use the first columns of the mixing matrices.

    `param_share_style` says what shares a mixing matrix: nothing, the heads, also keys and values, or also all layers;
    `tie_kernel_projections` then gives each layer the same matrix.
    """

    key_projection_kernel: nn.Parameter | None
    value_projection_kernel: nn.Parameter | None

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
        if param_share_style not in SHARE_STYLES:
            raise UserError(
                f"Unknown param_share_style {param_share_style!r}.",
                suggest(str(param_share_style), SHARE_STYLES),
            )
        if kv_len < 1 or reduced_kv_len_dim < 1:
            raise UserError(
                f"kv_len={kv_len} and reduced_kv_len_dim={reduced_kv_len_dim} were given.",
                "Give both above 0.",
            )
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        if self.bias_k is not None or self.add_zero_attn:
            raise UserError(
                "add_bias_kv and add_zero_attn have no meaning for mixed keys.",
                "Leave them out of LinformerAttention.",
            )
        self.kv_len = kv_len
        self.param_share_style = param_share_style
        self.projection_kernel_initializer = projection_kernel_initializer
        num_kernels = num_heads if param_share_style == "no-share" else 1
        like = self.out_proj.weight

        def kernel() -> nn.Parameter:
            shape = (num_kernels, reduced_kv_len_dim, kv_len)
            return nn.Parameter(torch.empty(shape, device=like.device, dtype=like.dtype))

        tied = param_share_style == "share-layerwise"
        separate = param_share_style in ("no-share", "share-headwise")
        self.register_parameter("key_projection_kernel", None if tied else kernel())
        self.register_parameter("value_projection_kernel", kernel() if separate else None)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        super()._reset_parameters()
        # The first call is before the kernels exist; a kernel that layers share is drawn by its owner.
        for name in ("key_projection_kernel", "value_projection_kernel"):
            kernel = self._parameters.get(name)
            if kernel is not None and self.param_share_style != "share-layerwise":
                for matrix in kernel.detach():
                    get_initializer(self.projection_kernel_initializer)(matrix)

    def tie_kernel_projections(self, kernel: nn.Parameter) -> None:
        """Sets the mixing matrix that all layers share, of shape [1, reduced_kv_len_dim, kv_len]."""
        if self.param_share_style != "share-layerwise":
            raise UserError(
                f"A kernel was to be tied with param_share_style={self.param_share_style!r}.",
                "Make the layer with 'share-layerwise'.",
            )
        if kernel.dim() != 3 or kernel.shape[0] != 1 or kernel.shape[2] != self.kv_len:
            raise UserError(
                f"The kernel has shape {tuple(kernel.shape)}.", f"Give [1, reduced length, {self.kv_len}]."
            )
        self.key_projection_kernel = kernel

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
        **refused: Any,
    ) -> tuple[Any, ...]:
        """Returns the output, and the weights over the mixtures if `need_weights`."""
        used = [name for name, given in refused.items() if given is not None and given is not False]
        if attn_mask is not None or is_causal or used:
            given = "attn_mask" if attn_mask is not None else "is_causal" if is_causal else used[0]
            raise UserError(
                f"{given} has no meaning for mixed keys.", "Use key_padding_mask, or MultiheadAttention."
            )
        is_batched = check_inputs(query, key, value, self._input_widths())
        if not is_batched:
            query, key, value = add_batch(query, key, value)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        seq_first = is_batched and not self.batch_first
        q, k, v = self._project(query, key, value, seq_first)
        if k.shape[2] > self.kv_len:
            raise UserError(
                f"There are {k.shape[2]} keys and kv_len is {self.kv_len}.",
                "Make the layer with a larger kv_len.",
            )
        check_batches(q, k, self.batch_first)
        if key_padding_mask is not None:
            # other attentions add it to scores; here it must mask wholly or not at all
            if key_padding_mask.is_floating_point():
                key_padding_mask = key_padding_mask < _MASKED_BELOW
            if key_padding_mask.dtype != torch.bool or key_padding_mask.shape != (k.shape[0], k.shape[2]):
                raise UserError(
                    f"key_padding_mask is {key_padding_mask.dtype} of shape {tuple(key_padding_mask.shape)}.",
                    f"Give bool of shape {(k.shape[0], k.shape[2])}, True for padding, or float, below {_MASKED_BELOW:g} for padding.",
                )
            padding = key_padding_mask[:, None, :, None]
            k, v = k.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
        key_kernel = self.key_projection_kernel
        if key_kernel is None:
            raise UserError("No mixing matrix was given.", "Call tie_kernel_projections on each layer first.")
        value_kernel = key_kernel if self.value_projection_kernel is None else self.value_projection_kernel
        k = key_kernel[..., : k.shape[2]] @ k
        v = value_kernel[..., : v.shape[2]] @ v
        output, weights = self._attend(q, k, v, None, False, need_weights, average_attn_weights, seq_first)
        if not is_batched:
            output, weights = output[0], None if weights is None else weights[0]
        return output, weights
