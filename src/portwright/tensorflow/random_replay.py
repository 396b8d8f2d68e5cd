"""Random ops that count what they drew: after a restart they draw it again, so that what follows is the same.

The counter of such an op lives in its kernel and in no checkpoint. It depends on how much was drawn only, so that the
ops are run alone, without the model, with the shapes they had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from portwright.tensorflow.graph_walk import ancestors

_BY_SHAPE = ("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt")
_OTHERS = (
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomCrop",
    "StatefulRandomBinomial",
)
_HARMLESS = ("VarHandleOp", "ReadVariableOp", "VariableV2", "Placeholder")
_MAX_RUNS = 100_000  # of equal shapes; a run that changes them more often is not worth its record


class RandomReplay:
    """Keeps count of what the random ops among `needed` draw, and draws it again."""

    def __init__(self, needed: set[tf.Operation]) -> None:
        drawing = sorted((op for op in needed if op.type in _BY_SHAPE), key=lambda op: op.name)
        others = sorted({op.type for op in needed if op.type in _OTHERS} | _in_functions(needed))
        dynamic: dict[str, Any] = {}
        self._ops: list[tf.Operation] = []
        self.problems: list[str] = [f"{kind} cannot be replayed" for kind in others]
        for op in drawing:
            shape = op.inputs[0]
            is_static = tf.get_static_value(shape) is not None
            if any(op.get_attr(name) for name in ("seed", "seed2")) is False:
                self.problems.append(f"{op.name} has no seed")
            elif _has_effects(op, () if is_static else (shape,)):
                self.problems.append(f"{op.name} cannot be run alone")
            else:
                self._ops.append(op)
                if not is_static:
                    dynamic[shape.name] = shape
        self._feeds = list(dynamic.values())
        self._lengths = [shape.shape.num_elements() or 0 for shape in self._feeds]
        if not all(self._lengths):
            self.problems.append("the rank of what is drawn is not known")
            self._feeds, self._lengths, self._ops = [], [], []
        self.shapes = (
            tf.concat([tf.cast(shape, tf.int64) for shape in self._feeds], 0) if self._feeds else None
        )
        self._runs: list[list[Any]] = []  # [count, shapes] of steps in a row
        self._last: bytes | None = None

    def count(self, shapes: Any) -> None:
        """Takes note of one more step, in which `shapes` were drawn."""
        if self._runs and (shapes is None or shapes.tobytes() == self._last):
            self._runs[-1][0] += 1
            return
        if len(self._runs) >= _MAX_RUNS:
            self._give_up()
            return
        self._last = None if shapes is None else shapes.tobytes()
        self._runs.append([1, () if shapes is None else tuple(int(size) for size in shapes)])

    @property
    def draws(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return tuple((count, shapes) for count, shapes in self._runs) if self._ops else ()

    def replay(self, session: Any, draws: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        """Draws again what was drawn, and goes on counting from there."""
        self._runs = [[count, tuple(shapes)] for count, shapes in draws]
        self._last = np.array(draws[-1][1], np.int64).tobytes() if draws else None
        if not self._ops:
            return
        draw = session.make_callable(self._ops, feed_list=self._feeds)
        for count, shapes in draws:
            fed = self._split(shapes)
            for _ in range(count):
                draw(*fed)

    def _split(self, shapes: Sequence[int]) -> list[Any]:
        fed: list[Any] = []
        start = 0
        for feed, length in zip(self._feeds, self._lengths, strict=True):
            fed.append(np.array(list(shapes[start : start + length]), feed.dtype.as_numpy_dtype))
            start += length
        return fed

    def _give_up(self) -> None:
        if self._ops:
            self.problems.append("the shapes of what is drawn change too often")
        self._ops, self._runs = [], []


def _has_effects(op: tf.Operation, cut: Sequence[Any]) -> bool:
    """Whether running this op alone would run anything else that counts or changes, such as the input."""
    needed = ancestors([op], cut) - {op}
    return any(
        other.op_def is not None and other.op_def.is_stateful and other.type not in _HARMLESS
        for other in needed
    )


def _in_functions(needed: set[tf.Operation]) -> set[str]:
    """Kinds of random ops in the functions (branches, loops) that these ops call; datasets keep their own."""
    waiting = [
        name
        for op in needed
        if not any(word in op.type for word in ("Dataset", "Iterator"))
        for name in _called(op.node_def)
    ]
    if not waiting:
        return set()
    library = {
        function.signature.name: function
        for function in tf.compat.v1.get_default_graph().as_graph_def().library.function
    }
    seen: set[str] = set()
    kinds: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in library:
            continue
        seen.add(name)
        for node in library[name].node_def:
            if node.op in _BY_SHAPE or node.op in _OTHERS:
                kinds.add(f"{node.op} in a branch, loop or function")
            waiting.extend(_called(node))
    return kinds


def _called(node: Any) -> list[str]:
    return [value.func.name for value in node.attr.values() if value.HasField("func") and value.func.name]
