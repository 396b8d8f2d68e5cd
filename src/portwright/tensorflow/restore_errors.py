"""Why a checkpoint could not be restored, in a person's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from portwright.errors import suggest
from portwright.tensorflow.bad_input import BadValue

_MAX_NAMED = 4


@contextmanager
def explaining_restore(checkpoint: str | None) -> Iterator[None]:
    """Turns TensorFlow's error into one that names the variables that do not fit, where there are such."""
    graph = tf.compat.v1.get_default_graph()
    try:
        yield
    except (tf.errors.OpError, ValueError) as error:
        if checkpoint is None or isinstance(error, tf.errors.OutOfRangeError):
            raise
        misfit = _misfit(graph, checkpoint)
        if misfit is None:
            raise
        raise BadValue(
            f"The checkpoint {checkpoint} does not fit the model: {misfit}.",
            "Use another model_dir for another model, or name a checkpoint that fits.",
        ) from error


def _misfit(graph: Any, checkpoint: str) -> str | None:
    try:
        saved = {name: list(shape) for name, shape in tf.train.list_variables(checkpoint)}
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        return f"it cannot be read ({str(error).splitlines()[0]})"
    with graph.as_default():
        variables = {variable.op.name: variable.shape for variable in tf.compat.v1.global_variables()}
    wrong = [
        f"{name} has shape {saved[name]} there and {shape.as_list()} here"
        for name, shape in variables.items()
        if name in saved and not shape.is_compatible_with(saved[name])
    ]
    missing = [name for name in variables if name not in saved]
    if wrong:
        return _some(wrong)
    if missing:
        return f"it has no {_some(missing)} ({suggest(missing[0], saved) if len(saved) < 20 else f'{len(saved)} others'})"
    return None


def _some(items: list[str]) -> str:
    rest = f" and {len(items) - _MAX_NAMED} more" if len(items) > _MAX_NAMED else ""
    return "; ".join(items[:_MAX_NAMED]) + rest
