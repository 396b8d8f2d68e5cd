"""The position of a graph's input: its iterators' states, or else the number of batches they gave."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from portwright.stream.progress import tell_progress
from portwright.tensorflow.graph_walk import ancestors

_ITERATORS = ("IteratorV2", "Iterator", "OneShotIterator")
_NEXT = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional")
# tf.data's ExternalStatePolicy. External state is a generator, a py_function or a random op in a map
_FAIL_ON_EXTERNAL_STATE = 2
# A shuffle buffer of images can be larger than the model; drawing its batches again then costs less than saving it.
_MAX_STATE_BYTES = 256 << 20
_SHUFFLE = re.compile(rb"(Iterator::Root[ -?A-~]*::Shuffle[ -9;-?A-~]*)@@")  # an iterator's name in a state


@dataclass(frozen=True)
class Saved:
    """States of iterators after `num_runs` steps; or none, and in `refusal` the reason."""

    states: list[bytes]
    num_runs: int
    refusal: str


class InputState:
    """Saves and restores the positions of the iterators that the ops `needed` by a step read."""

    needs_no_state = False  # whether the number of batches alone is enough to restore the position

    def __init__(self, needed: set[tf.Operation]) -> None:
        nexts = sorted((op for op in needed if op.type in _NEXT), key=lambda op: op.name)
        sources = {source.name: source for op in nexts for source in ancestors([op.inputs[0]])}
        handles = [op.outputs[0] for _, op in sorted(sources.items()) if op.type in _ITERATORS]
        makers = _makers(handles)
        self.digest = _digest(handles, makers)
        self._num_shuffles = _count_shuffles(handles, makers)
        self.has_iterators = bool(handles)
        self._draw = tf.group(*nexts) if nexts else None
        self._states = [
            tf.io.serialize_tensor(
                tf.raw_ops.SerializeIterator(
                    resource_handle=handle, external_state_policy=_FAIL_ON_EXTERNAL_STATE
                )
            )
            for handle in handles
        ]
        self._feeds = [tf.compat.v1.placeholder(tf.string, []) for _ in handles]
        self._restores = [
            tf.raw_ops.DeserializeIterator(
                resource_handle=handle, serialized=tf.io.parse_tensor(feed, tf.variant)
            )
            for handle, feed in zip(handles, self._feeds, strict=True)
        ]
        self.refusal = ""  # why no state can ever be saved
        self._last = Saved([], 0, "it was between two passes")

    def save(self, session: Any, num_runs: int) -> Saved:
        """The states of all iterators after `num_runs` steps, or earlier ones, or none and the reason why.

        Between two passes over the data tf.data deletes the shuffle of the first, with the random state from which the
        second begins: a state saved then is wrong, and the one saved before is returned instead.
        """
        if self.has_iterators and not self.refusal:
            try:
                states = [bytes(state) for state in session.run(self._states)]
            except tf.errors.OpError as error:
                self.refusal = _reason(error)
            else:
                size = sum(map(len, states))
                if size > _MAX_STATE_BYTES:
                    self.refusal = f"its buffers hold {size >> 20} MiB"
                elif len(set(_SHUFFLE.findall(b"".join(states)))) >= self._num_shuffles:
                    self._last = Saved(states, num_runs, "")
        # After one refusal no further try is made: a later one would fail too.
        return Saved([], 0, self.refusal) if self.refusal else self._last

    def start_over(self) -> None:
        """Called where no position is restored; iterators of a new session are at the beginning anyway."""

    def restore(self, session: Any, states: list[bytes], num_runs: int) -> str:
        """Restores the states saved after `num_runs` steps; returns what went wrong, or ""."""
        if len(states) != len(self._feeds):
            return f"there are {len(states)} states for {len(self._feeds)} iterators"
        try:
            session.run(self._restores, dict(zip(self._feeds, states, strict=True)))
        except tf.errors.OpError as error:
            return _reason(error)
        self._last = Saved(states, num_runs, "")
        return ""

    def skip(self, session: Any, num_batches: int) -> int:
        """Draws batches and drops them; returns their number, which is smaller where the data end."""
        if self._draw is None:
            return num_batches
        draw = session.make_callable(self._draw)
        for count in range(num_batches):
            tell_progress()
            try:
                draw()
            except tf.errors.OutOfRangeError:
                return count
        return num_batches


def _makers(handles: Sequence[Any]) -> list[tf.Operation]:
    names = {handle.name for handle in handles}
    operations = tf.compat.v1.get_default_graph().get_operations()
    return [op for op in operations if op.type == "MakeIterator" and op.inputs[1].name in names]


def _digest(handles: Sequence[Any], makers: Sequence[tf.Operation]) -> str:
    """A hash of an input pipeline's ops, shapes and small constants, such as batch sizes."""
    lines = [f"{handle.op.type} {handle.op.get_attr('output_shapes')}" for handle in handles]
    for op in sorted(ancestors(makers), key=lambda op: op.name):
        # Larger constants are the data itself.
        is_small = op.type == "Const" and op.outputs[0].shape.num_elements() <= 16
        small = tf.get_static_value(op.outputs[0]).tolist() if is_small else ""
        lines.append(f"{op.type} {[str(tensor.shape) for tensor in op.outputs]} {small}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _count_shuffles(handles: Sequence[Any], makers: Sequence[tf.Operation]) -> int:
    kinds = [op.type for op in ancestors(makers)]
    factories = {
        handle.op.node_def.attr["dataset_factory"].func.name
        for handle in handles
        if handle.op.type == "OneShotIterator"
    }
    if factories:
        library = tf.compat.v1.get_default_graph().as_graph_def().library.function
        kinds += [
            node.op
            for function in library
            if function.signature.name in factories
            for node in function.node_def
        ]
    return sum("Shuffle" in kind for kind in kinds)


def _reason(error: tf.errors.OpError) -> str:
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
    telling = [line for line in lines if "stateful" in line or "not supported" in line or "Failed" in line]
    return (telling or lines or [type(error).__name__])[0][:300]
