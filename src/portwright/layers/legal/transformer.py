"""Torch's transformer stacks without their look at the mask, which reads a value back into Python."""

from __future__ import annotations

from torch import Tensor, nn


class TransformerEncoder(nn.TransformerEncoder):
    """nn.TransformerEncoder; a mask of which nothing is said is taken as it is, not tested for being causal."""

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        return super().forward(src, _beside(mask, src), src_key_padding_mask, bool(is_causal))


class TransformerDecoder(nn.TransformerDecoder):
    """nn.TransformerDecoder; a mask of which nothing is said is taken as it is, not tested for being causal."""

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        return super().forward(
            tgt, memory, _beside(tgt_mask, tgt), _beside(memory_mask, tgt), tgt_key_padding_mask, memory_key_padding_mask,
            bool(tgt_is_causal), memory_is_causal,
        )  # fmt: skip


def _beside(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """Torch drops a causal mask that it finds on the host; here it is used, so that it must be where `x` is."""
    return None if mask is None else mask.to(x.device)
