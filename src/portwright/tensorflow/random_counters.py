"""Counts the numbers that random ops draw, so that after a restart they continue with the same numbers.

The counter of such an op is in its kernel, and in no checkpoint. The numbers depend on the op's seeds and counter alone,
and TensorFlow also has a stateless op that computes them. A resumed graph uses that op, with the counter that the first
run had reached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

_STATELESS = {
    "RandomUniform": tf.raw_ops.StatelessRandomUniformV2,
    "RandomStandardNormal": tf.raw_ops.StatelessRandomNormalV2,
    "TruncatedNormal": tf.raw_ops.StatelessTruncatedNormalV2,
    "RandomUniformInt": tf.raw_ops.StatelessRandomUniformIntV2,
}
_OTHERS = (
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "StatefulRandomBinomial",
)
_SAMPLES_PER_VALUE = 256  # TensorFlow's GuardedPhiloxRandom reserves so many samples for each value drawn
_PHILOX = 1
_64_BITS = (1 << 64) - 1


class RandomCounters:
    """Counts the values that the random ops among `needed` draw; with `drawn`, the ops continue after so many values.

    TensorFlow gives an op without a seed a random one when its kernel is made; here the seed is derived from `own_seed`,
    which can be saved.
    """

    def __init__(
        self, needed: set[tf.Operation], own_seed: int, drawn: Mapping[str, int] | None = None
    ) -> None:
        self.problems = [f"{kind} has a state that cannot be restored" for kind in _kinds_with_state(needed)]
        self._num_steps = 0
        self._static: dict[str, int] = {}  # values drawn in each step
        dynamic: dict[str, Any] = {}
        self._start = dict(drawn or {})
        initializers = []
        for op in sorted((op for op in needed if op.type in _STATELESS), key=lambda op: op.name):
            _give_seed(op, own_seed)
            problem = "is in a branch or a loop" if op._get_control_flow_context() is not None else None
            if problem is None and drawn is not None and op.name not in drawn:
                problem = "was not there before"
            if problem is not None:
                self.problems.append(f"{op.name} {problem}")
                continue
            if drawn is not None:
                initializers.append(_resume_op(op, drawn[op.name]))
            size = op.outputs[0].shape.num_elements()
            if size is None:
                dynamic[op.name] = op.inputs[0]
            else:
                self._static[op.name] = size
        self._dynamic = list(dynamic)
        self._totals = np.zeros(len(dynamic), np.int64)
        sizes = [tf.reduce_prod(tf.cast(shape, tf.int64)) for shape in dynamic.values()]
        self.sizes = tf.stack(sizes) if sizes else None  # to be fetched with each step
        self._initialize = tf.group(*initializers) if initializers else None

    def initialize(self, session: Any) -> None:
        if self._initialize is not None:
            session.run(self._initialize)

    def count(self, sizes: Any) -> None:
        """Counts one more step; `sizes` are the numbers of values drawn in it by ops whose size the graph does not say."""
        self._num_steps += 1
        if sizes is not None:
            self._totals += sizes

    @property
    def drawn(self) -> dict[str, int]:
        """The number of values that each op has drawn, by name."""
        here = {name: size * self._num_steps for name, size in self._static.items()}
        here.update(zip(self._dynamic, map(int, self._totals), strict=True))
        return {name: self._start.get(name, 0) + count for name, count in here.items()}


def _resume_op(op: tf.Operation, num_drawn: int) -> Any:
    """Replaces a random op by its stateless twin, which reads a counter variable; returns the counter's initializer."""
    with tf.name_scope(f"{op.name}/resumed"), tf.device(op.device):
        counter = tf.compat.v1.Variable(
            num_drawn * _SAMPLES_PER_VALUE, dtype=tf.int64, collections=[], trainable=False, use_resource=True
        )
        size = op.outputs[0].shape.num_elements()
        if size is None:
            size = tf.reduce_prod(tf.cast(op.inputs[0], tf.int64))
        amount = size * _SAMPLES_PER_VALUE
        start = tf.cast(counter.assign_add(amount, read_value=True) - amount, tf.uint64)
        arguments = {
            "shape": op.inputs[0],
            "key": tf.constant([op.get_attr("seed") & _64_BITS], tf.uint64),
            "counter": tf.stack([start, tf.constant(op.get_attr("seed2") & _64_BITS, tf.uint64)]),
            "alg": _PHILOX,
        }
        if op.type == "RandomUniformInt":
            arguments.update(minval=op.inputs[1], maxval=op.inputs[2])
        else:
            arguments["dtype"] = op.outputs[0].dtype
        twin = _STATELESS[op.type](**arguments)
    twin.set_shape(op.outputs[0].shape)
    for consumer in op.outputs[0].consumers():
        for index, tensor in enumerate(consumer.inputs):
            if tensor is op.outputs[0]:
                consumer._update_input(index, twin)
    return counter.initializer


def _give_seed(op: tf.Operation, own_seed: int) -> None:
    if op.get_attr("seed") or op.get_attr("seed2"):
        return
    of_name = int.from_bytes(hashlib.sha256(op.name.encode()).digest()[:7], "big")
    for name, seed in (("seed", own_seed), ("seed2", of_name)):
        op._set_attr(name, attr_value_pb2.AttrValue(i=seed))


def _kinds_with_state(needed: set[tf.Operation]) -> list[str]:
    """The types of random ops whose state cannot be restored, also in functions (branches, loops); datasets save their own."""
    kinds = {op.type for op in needed if op.type in _OTHERS}
    waiting = [
        name
        for op in needed
        if not any(word in op.type for word in ("Dataset", "Iterator"))
        for name in _called(op.node_def)
    ]
    if not waiting:
        return sorted(kinds)
    library = {
        function.signature.name: function
        for function in tf.compat.v1.get_default_graph().as_graph_def().library.function
    }
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in library:
            continue
        seen.add(name)
        for node in library[name].node_def:
            if node.op in _STATELESS or node.op in _OTHERS:
                kinds.add(f"{node.op} in a branch, loop or function")
            waiting.extend(_called(node))
    return sorted(kinds)


def _called(node: Any) -> list[str]:
    return [value.func.name for value in node.attr.values() if value.HasField("func") and value.func.name]
