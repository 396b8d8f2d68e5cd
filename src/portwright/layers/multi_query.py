"""Attention in which groups of heads share their keys and values."""

from __future__ import annotations

from typing import Any

from portwright.errors import UserError
from portwright.layers.attention import MultiheadAttention


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
