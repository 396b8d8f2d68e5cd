"""Checks attention's inputs, and adds a batch dimension where they have none."""

from __future__ import annotations

from torch import Tensor

from portwright.errors import UserError


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
