"""Checkpoints of a folder: finds the newest undamaged one, and explains why a checkpoint cannot be restored."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.job.atomic import check_writable, explain_os_error
from portwright.tensorflow.arguments import BadValue

_STEP = re.compile(r"-(\d+)$")
_UNFINISHED = re.compile(r".*-\d+_temp$")
_known_whole: set[tuple[Any, ...]] = set()


def step_of(checkpoint: str) -> int:
    """The step at which a checkpoint was saved, read from its global_step; 0 without that variable."""
    reader = tf.train.load_checkpoint(checkpoint)
    return int(reader.get_tensor("global_step")) if reader.has_tensor("global_step") else 0


def newest_checkpoint(folder: str, note: Callable[[str], None]) -> str | None:
    """The newest undamaged checkpoint; None in a folder without checkpoints.

    A damaged one is named in a note and skipped. When all are damaged that is an error, since a new training would
    overwrite files that a person may still want to rescue.
    """
    listed = _listed(folder, note)
    for number, checkpoint in enumerate(reversed(listed)):
        damage = find_damage(checkpoint)
        if damage is None:
            if number:
                note(f"Going on from {checkpoint} instead.")
            return checkpoint
        note(f"The checkpoint {checkpoint} is damaged: {damage}.")
    if listed:
        raise UserError(
            f"None of the {len(listed)} checkpoints in {folder} can be read.",
            "Put a whole one back, or choose another model_dir to start afresh.",
        )
    return None


def find_damage(checkpoint: str) -> str | None:
    """Reads every value of a checkpoint, which checks its checksums; returns what is wrong, or None."""
    identity = _identity(checkpoint)
    if identity in _known_whole:
        return None
    try:
        reader = tf.train.load_checkpoint(checkpoint)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError, SystemError) as error:
        return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
    _known_whole.add(identity)
    return None


def forget_damaged(folder: str, newest: str | None) -> None:
    """Makes the list of checkpoints in `folder` end with `newest`, so that a session restores that one."""
    state = tf.train.get_checkpoint_state(folder)
    if newest is None or (state is not None and _same(state.model_checkpoint_path, newest)):
        return
    listed = list(state.all_model_checkpoint_paths) if state is not None else []
    kept = [
        path
        for path in listed
        if step_in_name(path) < step_in_name(newest) and tf.io.gfile.exists(path + ".index")
    ]
    from tensorflow.python.checkpoint import checkpoint_management

    checkpoint_management.update_checkpoint_state_internal(
        folder, newest, [*kept, newest], save_relative_paths=True
    )


def make_folder(folder: str) -> None:
    """Makes the folder, or raises an error that says why it cannot be made."""
    if "://" in folder:
        tf.io.gfile.makedirs(folder)
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        check_writable(Path(folder))
    except OSError as error:
        raise explain_os_error(error, Path(folder)) from error


def trust(checkpoint: str) -> None:
    """Marks a checkpoint that this process has just written as undamaged, so that it is not read again."""
    _known_whole.add(_identity(checkpoint))


def clean_unfinished(folder: str) -> None:
    """Removes folders that a killed process left half written."""
    if "://" in folder or not Path(folder).is_dir():
        return
    for path in Path(folder).iterdir():
        if _UNFINISHED.fullmatch(path.name) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def step_in_name(checkpoint: str) -> int:
    found = _STEP.search(checkpoint)
    return int(found[1]) if found else -1


def saved_steps(folder: str) -> set[int]:
    """The steps of the checkpoints in `folder`, by their file names."""
    return {step_in_name(path.stem) for path in Path(folder).glob("*.index")}


def _listed(folder: str, note: Callable[[str], None]) -> list[str]:
    """Checkpoints that the file `checkpoint` lists, oldest first; where that file is unreadable, those found in the folder."""
    listing = os.path.join(folder, "checkpoint")  # noqa: PTH118 - it may be a URL
    if not tf.io.gfile.exists(listing):
        return []
    state = tf.train.get_checkpoint_state(folder)
    if state is not None and state.model_checkpoint_path:
        others = [
            path for path in state.all_model_checkpoint_paths if not _same(path, state.model_checkpoint_path)
        ]
        return [*others, state.model_checkpoint_path]
    found = tf.io.gfile.glob(_escape(folder) + "/*-*.index")
    checkpoints = sorted((name[: -len(".index")] for name in found), key=step_in_name)
    if checkpoints:
        note(f"The list {listing} cannot be read; going by the files beside it.")
    return checkpoints


def _escape(path: str) -> str:
    return re.sub(r"([\[\]*?\\])", r"\\\1", path)


def _identity(checkpoint: str) -> tuple[Any, ...]:
    files = sorted(tf.io.gfile.glob([_escape(checkpoint) + ".index", _escape(checkpoint) + ".data-*"]))
    return (checkpoint, *((name, *_size_and_time(name)) for name in files))


def _same(one: str, other: str) -> bool:
    return os.path.normpath(one) == os.path.normpath(other)


def _size_and_time(name: str) -> tuple[int, int]:
    if "://" not in name:  # TensorFlow's own stat rounds to whole seconds
        local = Path(name).stat()
        return local.st_size, local.st_mtime_ns
    stat = tf.io.gfile.stat(name)
    return stat.length, stat.mtime_nsec


_MAX_NAMED = 4
_CURE = "Use another model_dir for another model, or name a checkpoint that fits."


@contextmanager
def explaining_restore(checkpoint: str | None) -> Iterator[None]:
    """Turns TensorFlow's error into one that names the variables that do not fit, if there are any."""
    graph = tf.compat.v1.get_default_graph()
    try:
        yield
    except (tf.errors.OpError, ValueError) as error:
        if checkpoint is not None and "not a valid checkpoint" in str(error):
            raise BadValue(
                f"There is no checkpoint {checkpoint}.",
                "Name one without its .index, such as model.ckpt-100, or leave it out to take the newest.",
            ) from error
        # Errors of the model itself are raised in this block too; they are not about the checkpoint.
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

    With a saver of the user's own nothing is checked: it may restore under other names.
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
