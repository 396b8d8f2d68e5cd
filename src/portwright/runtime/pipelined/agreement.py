"""What the stages of a step tell each other: the loss, the norm of all gradients, and which layer made a loss that is not finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from portwright.errors import ExitStatus, NonFiniteError
from portwright.job.optimizer import OptimizerParams
from portwright.runtime.non_finite import LAYER_CURE, find_in_batch, find_in_weights
from portwright.runtime.world import World

_UNKNOWN_CURE = (
    "Run again with runconfig.precision: fp32 and without dropout to tell a random draw from an overflow."
)

Found = tuple[int, str, str]  # piece of the model (-1: before the first), what, cure


@torch.no_grad()
def sum_of_squares(parameters: Sequence[torch.nn.Parameter], device: torch.device) -> torch.Tensor:
    """The sum of squares of all gradients, in double precision."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack([norm.double() for norm in torch._foreach_norm(grads)]).square().sum()


def add_up(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each part summed over all processes."""
    sums = torch.stack(list(parts))
    dist.all_reduce(sums)
    return list(sums.unbind())


@torch.no_grad()
def clip(parameters: Sequence[torch.nn.Parameter], spec: OptimizerParams, norm: torch.Tensor | None) -> None:
    """Clips as a resident session does, by the norm over all stages."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return
    if spec.max_gradient_value is not None:
        torch._foreach_clamp_min_(grads, -spec.max_gradient_value)
        torch._foreach_clamp_max_(grads, spec.max_gradient_value)
    elif spec.max_gradient_norm is not None:
        assert norm is not None
        factor = (spec.max_gradient_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(grads, factor.to(grads[0].dtype))


def explain_together(
    world: World,
    batches: Sequence[Any],
    named_weights: Sequence[tuple[str, torch.Tensor]],
    search: Callable[[], Found | None],
    *,
    step: int,
    loss: float,
    stage: int,
) -> NonFiniteError:
    """The same error on every process; `search` runs the forward passes again, on all of them together."""
    in_batch = next(filter(None, map(find_in_batch, batches)), None)
    in_weight = None if in_batch is not None else find_in_weights(named_weights)
    own: Found | None = (-1, *in_batch) if in_batch is not None else None
    if in_weight is not None:
        own = (stage, *in_weight)
    found = world.gather(own)
    if not any(found):
        found = world.gather(search())
    known = [(item, rank) for rank, item in enumerate(found) if item is not None]
    if not known:
        return NonFiniteError(
            f"the loss is {loss} at step {step}, and the same batch gives a finite one when it is run again.",
            _UNKNOWN_CURE,
        )
    (piece, what, cure), rank = min(known)
    where = f"stage {piece} (process {rank}): " if piece >= 0 else ""
    error = NonFiniteError(f"the loss is {loss} at step {step}: {where}{what}.", cure)
    if step == 1 and piece < 0:
        error.status = ExitStatus.USAGE
    return error


def blame_layer(piece: int, label: str, tensor: torch.Tensor) -> Found:
    return piece, f"{label} gives the first non-finite value {list(tensor.shape)}", LAYER_CURE
