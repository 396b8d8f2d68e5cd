"""Why a checkpoint could not be restored, in a person's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from portwright.errors import suggest
from portwright.tensorflow.bad_input import BadValue

_MAX_NAMED = 4
_CURE = "Use another model_dir for another model, or name a checkpoint that fits."


@contextmanager
def explaining_restore(checkpoint: str | None) -> Iterator[None]:
    """Turns TensorFlow's error into one that names the variables that do not fit, where there are such."""
    graph = tf.compat.v1.get_default_graph()
    try:
        yield
    except (tf.errors.OpError, ValueError) as error:
        if checkpoint is not None and "not a valid checkpoint" in str(error):
            raise BadValue(
                f"There is no checkpoint {checkpoint}.",
                "Name one without its .index, such as model.ckpt-100, or leave it out to take the newest.",
            ) from error
        # Errors of the model itself come through here too, and are not about a checkpoint.
        misfit = (
            _misfit(graph, checkpoint) if checkpoint and "Restoring from checkpoint" in str(error) else None
        )
        if misfit is None:
            raise
        raise BadValue(
            f"The checkpoint {checkpoint} does not fit the model: {misfit}.",
            _CURE,
        ) from error


def check_shapes(checkpoint: str | None, scaffold: Any) -> None:
    """Refuses a checkpoint whose variables have other shapes: TensorFlow would take them silently.

    What a saver of the user's own restores is his to know.
    """
    if checkpoint is None or scaffold.saver or not tf.compat.v1.train.checkpoint_exists(checkpoint):
        return
    misfit = _misfit(tf.compat.v1.get_default_graph(), checkpoint, looks_for_missing=False)
    if misfit is not None:
        raise BadValue(f"The checkpoint {checkpoint} does not fit the model: {misfit}.", _CURE)


def _misfit(graph: Any, checkpoint: str, looks_for_missing: bool = True) -> str | None:
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
    if missing and looks_for_missing:
        return f"it has no {_some(missing)} ({suggest(missing[0], saved) if len(saved) < 20 else f'{len(saved)} others'})"
    return None


def _some(items: list[str]) -> str:
    rest = f" and {len(items) - _MAX_NAMED} more" if len(items) > _MAX_NAMED else ""
    return "; ".join(items[:_MAX_NAMED]) + rest
