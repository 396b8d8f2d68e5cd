"""Diagnoses a batch that differs from the original's: shifted, of another size, in another order, or with other values."""

from __future__ import annotations

import math
from typing import Any

from portwright.verify.compare_exact import same_batch, same_values
from portwright.verify.recording import Recording, Step, TensorDigest


def diagnose_batch(original: Recording, ported: Recording, step: int) -> tuple[str, str]:
    """The diagnosis as a word and as a sentence."""
    mine, theirs = original.steps[step - 1], ported.steps[step - 1]
    ratio = _size_ratio(mine, theirs)
    if ratio != 1:
        shapes = [" and ".join(str(list(d.shape)) for d in side.batch) for side in (mine, theirs)]
        return (
            "batch-size",
            f"The port's batch has {ratio:g} times the samples: {shapes[1]} where the original has {shapes[0]}.",
        )
    for other in sorted(original.steps, key=lambda s: (abs(s.index - step), s.index)):
        if other.index != step and same_batch(other, theirs):
            apart = other.index - step
            way = "ahead of" if apart > 0 else "behind"
            steps = f"{abs(apart)} step{'' if abs(apart) == 1 else 's'}"
            others = [s for s in original.steps if s.index != other.index and same_batch(s, theirs)]
            again = f" (and in {len(others)} more)" if others else ""
            return "batch-shifted", (
                f"The port's batch is the one that the original sees in step {other.index}{again}: it is {steps} {way} it."
            )
    changed = [d for d in mine.batch if not any(same_values(d, o) for o in theirs.batch)]
    kept = len(mine.batch) - len(changed)
    if kept and changed:
        new = [d for d in theirs.batch if not any(same_values(d, o) for o in mine.batch)]
        if new and math.prod(new[0].shape) == math.prod(changed[0].shape):
            return "batch-values", (
                f"The batch's tensor of shape {list(changed[0].shape)} holds other values, while {kept} of its tensors are "
                f"the same: mean {_mean(changed[0]):.4g} and deviation {_deviation(changed[0]):.4g} in the original, "
                f"{_mean(new[0]):.4g} and {_deviation(new[0]):.4g} in the port. Look at transforms and normalisation."
            )
    return (
        "batch-order",
        "The port's batch is none of those that the original sees: look at shuffling, seeds and the dataset.",
    )


def describe_batch(step: Step) -> list[dict[str, Any]]:
    return [
        {"shape": list(d.shape), "dtype": d.dtype, "mean": _mean(d), "deviation": _deviation(d)}
        for d in step.batch
    ]


def _size_ratio(mine: Step, theirs: Step) -> float:
    """The factor by which all tensors of the batch are larger; 1 where they do not share one."""
    if len(mine.batch) != len(theirs.batch):
        return 1.0
    ratios = {
        math.prod(b.shape) / max(1, math.prod(a.shape)) for a, b in zip(mine.batch, theirs.batch, strict=True)
    }
    return ratios.pop() if len(ratios) == 1 else 1.0


def _mean(digest: TensorDigest) -> float:
    return digest.total / max(1, math.prod(digest.shape))


def _deviation(digest: TensorDigest) -> float:
    count = max(1, math.prod(digest.shape))
    return math.sqrt(max(0.0, digest.square / count - _mean(digest) ** 2))
