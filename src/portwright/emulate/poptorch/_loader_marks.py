"""For how many micro-batches a DataLoader made a batch: a model with other options would cut it in another way, silently."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from portwright.emulate.poptorch._logging import logger

_MARK = "_poptorch_micro_batches"


def batches_of_a_call(options: Any) -> int:
    """How many micro-batches of data one call of a model with these options takes."""
    inputs: int = options.replication_factor // options.input_group_size  # replicas of a group share theirs
    return int(options.device_iterations * inputs * options.Training.gradient_accumulation)


def mark(batch: Any, micro_batches: int | None) -> Any:
    """Notes it on the tensors themselves; what the user computes from them carries no mark."""
    if micro_batches is not None:
        for leaf in tree_leaves(batch):
            if isinstance(leaf, torch.Tensor):
                setattr(leaf, _MARK, micro_batches)
    return batch


def warn_of_others(tensors: Iterable[torch.Tensor], micro_batches: int) -> bool:
    """Says that a batch was made for other options than the model's, and gives whether it was."""
    for tensor in tensors:
        made_for = getattr(tensor, _MARK, micro_batches)
        if made_for != micro_batches:
            logger.warning(
                "the DataLoader made this batch for %d micro-batches (deviceIterations x gradientAccumulation x replicationFactor of "
                "its options), and the model cuts it into %d: each has %g times as many samples as the loader's batch_size. Give both "
                "the same options",
                made_for,
                micro_batches,
                made_for / micro_batches,
            )
            return True
    return False
