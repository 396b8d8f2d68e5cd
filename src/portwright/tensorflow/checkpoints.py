"""Checkpoints of a folder: which one is the newest that can be read from end to end."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from portwright.errors import UserError
from portwright.job.atomic import check_writable, explain_os_error

_STEP = re.compile(r"-(\d+)$")
_UNFINISHED = re.compile(r".*-\d+_temp$")
_known_whole: set[tuple[Any, ...]] = set()


def step_of(checkpoint: str) -> int:
    """The step that a checkpoint was saved at, as the checkpoint itself says; 0 where it does not."""
    reader = tf.train.load_checkpoint(checkpoint)
    return int(reader.get_tensor("global_step")) if reader.has_tensor("global_step") else 0


def newest_checkpoint(folder: str, note: Callable[[str], None]) -> str | None:
    """The newest checkpoint that is whole; None where there is none at all.

    A damaged one is named and passed over. When all are damaged that is an error, since training afresh would
    overwrite what a person may still want to save.
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
    """Reads every value of a checkpoint, against its checksum; says what is wrong, or None."""
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
    kept = [path for path in listed if step_in_name(path) < step_in_name(newest) and _exists(path)]
    from tensorflow.python.checkpoint import checkpoint_management

    checkpoint_management.update_checkpoint_state_internal(
        folder, newest, [*kept, newest], save_relative_paths=True
    )


def make_folder(folder: str) -> None:
    """Makes the folder, or says why it cannot be."""
    if "://" in folder:
        tf.io.gfile.makedirs(folder)
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        check_writable(Path(folder))
    except OSError as error:
        raise explain_os_error(error, Path(folder)) from error


def trust(checkpoint: str) -> None:
    """Spares a checkpoint that this process has just written from being read again to be checked."""
    _known_whole.add(_identity(checkpoint))


def clean_unfinished(folder: str) -> None:
    """Removes what a killed writer left half written."""
    if "://" in folder or not Path(folder).is_dir():
        return
    for path in Path(folder).iterdir():
        if _UNFINISHED.fullmatch(path.name) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def step_in_name(checkpoint: str) -> int:
    found = _STEP.search(checkpoint)
    return int(found[1]) if found else -1


def saved_steps(folder: str) -> set[int]:
    """Steps of which `folder` has a checkpoint, as their names say."""
    return {step_in_name(path.stem) for path in Path(folder).glob("*.index")}


def _listed(folder: str, note: Callable[[str], None]) -> list[str]:
    """Checkpoints that the folder's list names, oldest first; where the list is unreadable, those that are there."""
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


def _exists(checkpoint: str) -> bool:
    return bool(tf.io.gfile.exists(checkpoint + ".index"))


def _same(one: str, other: str) -> bool:
    return os.path.normpath(one) == os.path.normpath(other)


def _size_and_time(name: str) -> tuple[int, int]:
    if "://" not in name:  # TensorFlow's own stat knows whole seconds
        local = Path(name).stat()
        return local.st_size, local.st_mtime_ns
    stat = tf.io.gfile.stat(name)
    return stat.length, stat.mtime_nsec
