"""The published learning rate: up over the first epoch, flat to the 21st, then down along an exponential to a floor."""

from __future__ import annotations

import math
from typing import Any

LOWEST, HIGHEST = 1e-4, 3e-4
WARM_EPOCHS, FLAT_EPOCHS, DECAY_EPOCHS = 1, 20, 8
DECAY_RATE = 0.999  # an epoch
PIECES = 16  # an epoch of the exponential, drawn as straight lines: within 0.1% of it, and every target can take them


def rate_at(epoch: float) -> float:
    """The curve itself."""
    if epoch < WARM_EPOCHS:
        return LOWEST + (HIGHEST - LOWEST) * epoch / WARM_EPOCHS
    past = max(0.0, epoch - WARM_EPOCHS - FLAT_EPOCHS)
    return LOWEST + (HIGHEST - LOWEST) * math.exp(-DECAY_RATE * past)


def published_schedule(steps_per_epoch: float) -> list[dict[str, Any]]:
    """The curve as `optimizer.learning_rate` of params.yaml takes it; the last rate holds from there on."""
    turns = [0.0, WARM_EPOCHS, WARM_EPOCHS + FLAT_EPOCHS]
    turns += [turns[-1] + piece / PIECES for piece in range(1, DECAY_EPOCHS * PIECES + 1)]
    steps = [round(turn * steps_per_epoch) for turn in turns]
    return [
        {
            "scheduler": "Linear",
            "initial_learning_rate": rate_at(start_epoch),
            "end_learning_rate": rate_at(end_epoch),
            "total_iters": end - start,
        }
        for start_epoch, end_epoch, start, end in zip(turns, turns[1:], steps, steps[1:], strict=False)
        if end > start
    ]
