"""Who made a loss that is not finite: the batch, a weight, or a layer of one of the stages; all processes look together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from portwright.errors import ExitStatus, NonFiniteError
from portwright.runtime.batches import walk_tensors
from portwright.runtime.non_finite import is_finite
from portwright.runtime.world import World

_DATA_CURE = "Clean the data set, or mask such values in data.py."
_WEIGHT_CURE = "Lower optimizer.learning_rate, or set optimizer.max_gradient_norm."
_LAYER_CURE = "Look at that layer's input range; lower the learning rate or use bf16 instead of fp16."
_UNKNOWN_CURE = (
    "Run again with runconfig.precision: fp32 and without dropout to tell a random draw from an overflow."
)

Found = tuple[int, str, str]  # piece of the model (-1: before the first), what, cure


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
    found = world.gather(next(_at_rest(batches, named_weights, stage), None))
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


def _at_rest(
    batches: Sequence[Any], named_weights: Sequence[tuple[str, torch.Tensor]], stage: int
) -> Iterator[Found]:
    for batch in batches:
        for path, tensor in walk_tensors(batch):
            if not is_finite(tensor):
                bad = ~torch.isfinite(tensor)
                first = bad.nonzero()[0].tolist()
                yield (
                    -1,
                    f"{path} holds {int(bad.sum())} non-finite value(s), the first at {first}",
                    _DATA_CURE,
                )
    for name, weight in named_weights:
        if not is_finite(weight):
            yield (
                stage,
                f"the weight '{name}' is not finite, so the update before it overflowed",
                _WEIGHT_CURE,
            )


def blame_layer(piece: int, label: str, tensor: torch.Tensor) -> Found:
    return piece, f"{label} gives the first non-finite value {list(tensor.shape)}", _LAYER_CURE
