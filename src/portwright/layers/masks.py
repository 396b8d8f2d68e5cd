"""Attention masks: autoregressive, sliding window, key padding, and their broadcastable forms.

Names and meanings are the model zoo's: in a mask of a number type 1 is masked and 0 attended, unless the minimum of
the type was asked for. A mask of type bool is True where masked, as torch.nn's layers take it.

Two things differ from the model zoo's own functions: inputs may be bool, and a causal mask is combined with the
padding instead of replacing it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portwright.errors import UserError

Device = torch.device | str | int | None

_DEFAULT_DTYPE = torch.float16  # the model zoo's
_CAUSAL_TAG = "_portwright_causal_version"


def minimum(dtype: torch.dtype) -> float | int:
    """The most negative finite number of a type, which masks a score that it is added to."""
    if dtype.is_floating_point:
        return torch.finfo(dtype).min
    if dtype.is_complex or dtype == torch.bool or torch.iinfo(dtype).min == 0:
        raise UserError(
            f"A mask of type {dtype} was asked for, which has no negative numbers.",
            "Ask for a floating-point or signed integer type, or for bool.",
        )
    return torch.iinfo(dtype).min


def create_autoregressive_mask(
    max_sequence_length: int, dtype: torch.dtype = _DEFAULT_DTYPE, device: Device = None
) -> Tensor:
    """The mask of shape [length, length] that hides the positions after each one; 1 (bool: True) is masked."""
    mask = create_2D_autoregressive_mask(max_sequence_length, max_sequence_length, dtype, device)
    return _mark_causal(mask) if mask.dtype == torch.bool else mask


def create_2D_autoregressive_mask(
    src_sequence_length: int,
    target_sequence_length: int,
    dtype: torch.dtype | None = None,
    device: Device = None,
) -> Tensor:
    """The causal mask for queries and keys of different lengths, whose first positions coincide."""
    _check_lengths(src_sequence_length=src_sequence_length, target_sequence_length=target_sequence_length)
    masked = torch.ones(src_sequence_length, target_sequence_length, dtype=torch.bool, device=device).triu(1)
    return _to_dtype(masked, dtype, use_minimum=False)


def create_sliding_window_mask(
    sequence_length: int,
    window_length: int,
    dtype: torch.dtype = torch.bool,
    device: Device = None,
    *,
    num_sink_tokens: int = 0,
    causal: bool = True,
) -> Tensor:
    """The mask by which each position sees the `window_length` latest ones, itself included; 1 is masked.

    Without `causal` the window reaches as far ahead as back. All later positions also see the first
    `num_sink_tokens`.
    """
    _check_lengths(sequence_length=sequence_length, num_sink_tokens=num_sink_tokens)
    if window_length < 1:
        raise UserError(f"window_length={window_length} leaves nothing to attend to.", "Give at least 1.")
    positions = torch.arange(sequence_length, device=device)
    distance = positions[:, None] - positions[None, :]
    masked = (distance if causal else distance.abs()) >= window_length
    if num_sink_tokens:
        masked &= positions[None, :] >= num_sink_tokens
    if causal:
        masked |= distance < 0
    return _to_dtype(masked, dtype, use_minimum=False)


def create_broadcasted_autoregressive_mask(
    batch_size: int,
    num_heads: int,
    tgt_seq_length: int,
    attention_span: Tensor | None = None,
    attention_sliding_window_length: int | None = None,
    attention_sink_tokens: int | None = None,
    *,
    device: Device = None,
    dtype: torch.dtype = _DEFAULT_DTYPE,
    use_neg_inf: bool = True,
) -> Tensor:
    """The causal mask as a view of shape [batch, heads, length, length] that takes the memory of one head.

    `attention_span`, of shape [batch, length], is for each key the distance to the last query that may see it, so
    that sequences packed into one row do not see each other.
    """
    if attention_span is not None and attention_sliding_window_length is not None:
        raise UserError("Both attention_span and attention_sliding_window_length were given.", "Give one.")
    if attention_sink_tokens is not None and attention_sliding_window_length is None:
        raise UserError(
            f"attention_sink_tokens={attention_sink_tokens} was given without a sliding window.",
            "Give attention_sliding_window_length as well.",
        )
    window = attention_sliding_window_length
    masked = create_sliding_window_mask(
        tgt_seq_length,
        max(tgt_seq_length, 1) if window is None else window,
        torch.bool,
        device,
        num_sink_tokens=attention_sink_tokens or 0,
    )
    if attention_span is not None:
        if attention_span.shape != (batch_size, tgt_seq_length):
            raise UserError(
                f"attention_span has shape {tuple(attention_span.shape)}.",
                f"Give it shape {(batch_size, tgt_seq_length)}: batch, length.",
            )
        positions = torch.arange(tgt_seq_length, device=masked.device)
        distance = positions[:, None] - positions[None, :]
        masked = masked | (distance > attention_span[:, None, None, :].to(masked.device))
    mask = _to_dtype(masked, dtype, use_minimum=use_neg_inf)
    return mask.expand(batch_size, num_heads, tgt_seq_length, tgt_seq_length)


def make_key_padding_mask_broadcastable(
    key_padding_mask: Tensor,
    dtype: torch.dtype | None = None,
    revert_mask: bool = True,
    multiply_neg_inf: bool = True,
) -> Tensor:
    """A padding mask of two to four dimensions in the shape [batch, heads, queries, keys], with 1 where it repeats.

    With `revert_mask` nonzero entries are attended, else masked; with `multiply_neg_inf` masked entries become the
    minimum of the type, else 1.
    """
    return _to_dtype(_to_4d(_is_masked(key_padding_mask, revert_mask)), dtype, use_minimum=multiply_neg_inf)


def build_broadcastable_attention_mask(
    attention_mask: Tensor,
    build_causal: bool = False,
    device: Device = None,
    dtype: torch.dtype | None = None,
    revert_mask: bool = True,
    multiply_neg_inf: bool = True,
) -> Tensor:
    """As `make_key_padding_mask_broadcastable`, and with `build_causal` later positions are masked too."""
    masked = _to_4d(_is_masked(attention_mask, revert_mask))
    if device is not None:
        masked = masked.to(device)
    if build_causal:
        num_keys = masked.shape[-1]
        num_queries = masked.shape[-2] if masked.shape[-2] != 1 else num_keys
        masked = masked | create_2D_autoregressive_mask(num_queries, num_keys, torch.bool, masked.device)
    return _to_dtype(masked, dtype, use_minimum=multiply_neg_inf)


def make_sparse_mask_broadcastable(
    sparse_mask: Tensor,
    key_padding_mask: Tensor,
    dtype: torch.dtype | None = None,
    device: Device = None,
    revert_mask: bool = True,
    multiply_neg_inf: bool = True,
) -> Tensor:
    """A sparse pattern of shape [queries, keys] together with a padding mask in which nonzero is masked."""
    masked = _is_masked(sparse_mask, revert_mask)
    padding = _to_4d(_is_masked(key_padding_mask, attended_is_nonzero=False))
    if device is not None:
        masked, padding = masked.to(device), padding.to(device)
    return _to_dtype(masked | padding, dtype, use_minimum=multiply_neg_inf)


def get_extended_attention_mask(
    attention_mask: Tensor,
    input_shape: tuple[int, int] | None = None,
    causal: bool = False,
    device: Device = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """A mask in which nonzero is attended, as [batch, 1, queries, keys] to be added to the scores.

    A causal mask needs `input_shape`, (batch, length); keys beyond that length are taken to be earlier ones.
    """
    if attention_mask.dim() not in (2, 3):
        raise UserError(
            f"attention_mask has shape {tuple(attention_mask.shape)}.",
            "Give it two dimensions (batch, keys) or three (batch, queries, keys).",
        )
    masked = _to_4d(_is_masked(attention_mask, attended_is_nonzero=True))
    if device is not None:
        masked = masked.to(device)
    if causal and attention_mask.dim() == 2:
        num_keys = masked.shape[-1]
        if input_shape is None or num_keys < input_shape[1]:
            raise UserError(
                f"A causal mask over {num_keys} keys was asked for with input_shape={input_shape}.",
                "Give input_shape=(batch, length), no longer than the mask.",
            )
        ones = torch.ones(input_shape[1], num_keys, dtype=torch.bool, device=masked.device)
        masked = masked | ones.triu(1 + num_keys - input_shape[1])
    return _to_dtype(masked, dtype, use_minimum=True)


def generate_square_subsequent_mask(
    sz: int, device: Device = None, dtype: torch.dtype | None = None
) -> Tensor:
    """The causal mask as torch.nn.Transformer makes it: -inf is masked, 0 attended.

    Layers of this package recognise it and let the kernel hide later positions instead of reading it.
    """
    _check_lengths(sz=sz)
    return _mark_causal(torch.full((sz, sz), float("-inf"), dtype=dtype, device=device).triu(1))


def is_known_causal(mask: Tensor) -> bool:
    """Whether this module made a mask as a causal one and it was not changed since; its values are not read.

    Within torch.compile and torch.export the answer is no: give the layers `is_causal=True` there.
    """
    if torch.compiler.is_compiling() or mask.is_inference() or mask.requires_grad:
        return False
    return getattr(mask, _CAUSAL_TAG, None) == mask._version


def _mark_causal(mask: Tensor) -> Tensor:
    # The version shows later whether the mask was written to; inference tensors have none.
    if not torch.compiler.is_compiling() and not mask.is_inference():
        setattr(mask, _CAUSAL_TAG, mask._version)
    return mask


def _is_masked(mask: Tensor, attended_is_nonzero: bool) -> Tensor:
    return mask == 0 if attended_is_nonzero else mask != 0


def _to_4d(mask: Tensor) -> Tensor:
    if mask.dim() == 2:
        return mask[:, None, None, :]
    if mask.dim() == 3:
        return mask[:, None, :, :]
    if mask.dim() == 4:
        return mask
    raise UserError(
        f"A mask of shape {tuple(mask.shape)} was given.",
        "Give it two dimensions (batch, keys), three (batch, queries, keys) or four (batch, heads, queries, keys).",
    )


def _to_dtype(masked: Tensor, dtype: torch.dtype | None, use_minimum: bool) -> Tensor:
    dtype = _DEFAULT_DTYPE if dtype is None else dtype
    if dtype == torch.bool:
        return masked
    value = minimum(dtype) if use_minimum else 1
    # torch cannot fill 8-bit floats, only convert to them
    if dtype.is_floating_point and dtype.itemsize == 1:
        return torch.zeros(masked.shape, device=masked.device).masked_fill_(masked, value).to(dtype)
    return torch.zeros(masked.shape, dtype=dtype, device=masked.device).masked_fill_(masked, value)


def _check_lengths(**lengths: int) -> None:
    for name, length in lengths.items():
        if length < 0:
            raise UserError(f"{name}={length} is negative.", "Give a length of 0 or more.")
