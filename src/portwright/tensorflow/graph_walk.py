"""Finds the ops that an op depends on, and those that depend on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf


def reach(ops: Iterable[Any], following: Callable[[Any], Iterable[Any]]) -> set[Any]:
    """The given ops, those that `following` gives for each, and so on."""
    waiting = list(ops)
    seen: set[Any] = set()
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            waiting.extend(following(op))
    return seen


def ancestors(targets: Iterable[Any]) -> set[tf.Operation]:
    """The ops of `targets` (tensors or ops) and all that these need."""
    return reach(
        (getattr(target, "op", target) for target in targets),
        lambda op: [*(tensor.op for tensor in op.inputs), *op.control_inputs],
    )


def descendants(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """The given ops, and all that depend on them."""
    return reach(
        ops,
        lambda op: [
            *(consumer for tensor in op.outputs for consumer in tensor.consumers()),
            *op._control_outputs,
        ],
    )
