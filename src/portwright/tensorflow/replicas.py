"""Training steps inside of a tf.distribute strategy, where each replica holds a part of the batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.errors import UnsupportedError
from portwright.job.optimizer import OptimizerParams
from portwright.tensorflow.gradient_clipping import as_dense


def num_replicas() -> int:
    """How many replicas make this step together; 1 without a strategy."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def check_replicas(spec: OptimizerParams) -> None:
    """Refuses what would need a decision of all replicas in the middle of a step."""
    wanted = [
        name
        for name, is_wanted in (
            ("loss_scaling_factor", spec.loss_scaling_factor != 1.0),
            ("grad_accum_steps", spec.grad_accum_steps > 1),
        )
        if is_wanted
    ]
    if wanted and num_replicas() > 1:
        raise UnsupportedError(
            f"optimizer.{wanted[0]} does not work on {num_replicas()} replicas of a tf.distribute strategy.",
            "Leave it out; bfloat16 needs no loss scaling, and more replicas make a larger batch.",
        )


def add_up(gradients: list[Any], variables: list[Any]) -> list[Any]:
    """The gradients of the whole batch, each replica's loss being its share, so that clipping sees what it should."""
    context = tf.distribute.get_replica_context()
    dense = [as_dense(g, variable.shape[0]) for g, variable in zip(gradients, variables, strict=True)]

    # Not `context.all_reduce`: it looks for variables to differentiate, and stumbles over copies of them.
    def merge(strategy: Any, *parts: Any) -> list[Any]:
        pairs = [(part, part) for part in parts]
        return list(strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs))

    return list(context.merge_call(merge, args=tuple(dense)))


def share(gradients: list[Any]) -> list[Any]:
    """A replica's share of gradients that were added up: applying them adds up once more."""
    return [gradient / num_replicas() for gradient in gradients]
