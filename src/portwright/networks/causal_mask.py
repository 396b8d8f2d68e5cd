"""Masks of tokens that a decoder must not see: later or distant ones, padding, other documents. True is hidden."""

from __future__ import annotations

import torch
from torch import Tensor

from portwright.errors import UserError


def banded_mask(num_queries: int, num_past: int, window: int, device: torch.device) -> Tensor:
    """The mask [queries, keys] by which each token sees the `window` latest ones, itself included."""
    keys = torch.arange(num_past + num_queries, device=device)
    distance = keys[num_past:, None] - keys[None, :]
    return (distance < 0) | (distance >= window)


def document_mask(document_ids: Tensor) -> Tensor:
    """The causal mask [batch, 1, queries, keys] that also hides other documents."""
    length = document_ids.shape[1]
    positions = torch.arange(length, device=document_ids.device)
    is_later = positions[None, :] > positions[:, None]
    is_other = document_ids[:, :, None] != document_ids[:, None, :]
    return (is_later | is_other)[:, None]


def positions_in_documents(document_mask: Tensor) -> Tensor:
    """How many tokens of its own document come before each, [batch, queries], from `document_mask`."""
    return (~document_mask[:, 0]).sum(dim=-1) - 1


def padding_mask(attention_mask: Tensor | None, input_ids: Tensor, num_past: int) -> Tensor | None:
    """The mask [batch, keys] that hides padding, from a numeric mask in which 1 is a token and 0 padding."""
    if attention_mask is None:
        return None
    wanted = (input_ids.shape[0], num_past + input_ids.shape[1])
    if tuple(attention_mask.shape) != wanted:
        raise UserError(
            f"attention_mask has shape {tuple(attention_mask.shape)}.",
            f"Give it {wanted}: one for each token{', cached ones first' if num_past else ''}.",
        )
    return attention_mask == 0


def check_ids(input_ids: Tensor) -> None:
    """Refuses ids whose shape is not a batch of sequences."""
    if input_ids.dim() != 2:
        raise UserError(
            f"input_ids has shape {tuple(input_ids.shape)}.",
            "Give it [batch, tokens]; [None] adds a batch of one.",
        )


def check_token_shape(name: str, given: Tensor, input_ids: Tensor) -> None:
    """Refuses a tensor without one value for each token."""
    if given.shape != input_ids.shape:
        raise UserError(
            f"{name} has shape {tuple(given.shape)} and input_ids {tuple(input_ids.shape)}.",
            "Give one for each token.",
        )
