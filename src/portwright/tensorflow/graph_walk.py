"""Finds the ops that an op depends on, and those that depend on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf


def ancestors(targets: Iterable[Any], cut: Iterable[Any] = ()) -> set[tf.Operation]:
    """The ops of `targets` (tensors or ops) and all that these need; the search stops at the tensors in `cut`."""
    cut_names = {tensor.name for tensor in cut}
    waiting = [getattr(target, "op", target) for target in targets]
    seen: set[tf.Operation] = set()
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        waiting.extend(tensor.op for tensor in op.inputs if tensor.name not in cut_names)
        waiting.extend(op.control_inputs)
    return seen


def descendants(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """The given ops, and all that depend on them."""
    waiting = list(ops)
    seen: set[tf.Operation] = set()
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        waiting.extend(consumer for tensor in op.outputs for consumer in tensor.consumers())
        waiting.extend(op._control_outputs)
    return seen
