"""The two running means of Adam, and the direction they give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from portwright.runtime.extra_optimizers.shards import gradient_of, local


def trained(group: dict[str, Any]) -> list[Tensor]:
    """The parameters of a group that have a gradient and an element."""
    return [parameter for parameter in group["params"] if parameter.grad is not None and parameter.numel()]


def parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This process's parts of the tensors."""
    return [local(tensor) for tensor in tensors]


def gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """This process's parts of the gradients."""
    return [local(gradient_of(parameter)) for parameter in parameters]


def count(states: Iterable[dict[str, Any]]) -> list[int]:
    """Counts one more step in each state; the counters stay on the host, so that reading them waits for nothing."""
    counts = []
    for state in states:
        state["step"] += 1
        counts.append(int(state["step"].item()))
    return counts


def new_counter() -> Tensor:
    return torch.zeros((), dtype=torch.float32)


def adam_directions(
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    betas: tuple[float, float],
    eps: float,
    steps: list[int] | None = None,
    largest: list[Tensor] | None = None,
) -> list[Tensor]:
    """Updates both running means and gives mean / (sqrt(square) + eps).

    With `steps` the means are corrected for their start at zero; with `largest` the largest square so far counts.
    """
    beta1, beta2 = betas
    torch._foreach_lerp_(means, grads, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
    if largest is not None:
        torch._foreach_maximum_(largest, squares)
    denominators = torch._foreach_sqrt(squares if largest is None else largest)
    if steps is not None:
        torch._foreach_div_(denominators, [(1 - beta2**step) ** 0.5 for step in steps])
    torch._foreach_add_(denominators, eps)
    if steps is not None:
        torch._foreach_mul_(denominators, [1 - beta1**step for step in steps])
    return list(torch._foreach_div(means, denominators))
