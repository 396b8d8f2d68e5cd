"""What a loss depends on, as autograd keeps it."""

from __future__ import annotations

from typing import Any

import torch


def graph_of(losses: list[torch.Tensor]) -> dict[Any, None]:
    """Every node that gradients pass, in the order of a walk from the losses."""
    seen: dict[Any, None] = {}
    stack: list[Any] = [loss.grad_fn for loss in reversed(losses)]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen[node] = None
            stack += [following for following, _ in reversed(node.next_functions)]
    return seen


def leaves_of(losses: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors at the end of that walk, which get the gradients."""
    leaves = (getattr(node, "variable", None) for node in graph_of(losses))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
