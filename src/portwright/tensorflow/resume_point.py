"""The files beside a checkpoint from which a run continues exactly: the position of its input and of its random ops.

`resume/step-N/` belongs to the checkpoint of step N. A checkpoint without one, such as tf.estimator's own, starts its
input from the beginning, as tf.estimator does.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from portwright.job.atomic import atomic_directory, atomic_write_text, clean_leftovers, remove_directory

_FOLDER = "resume"
_NAME = re.compile(r"step-(\d+)")
_POINT = "point.json"


@dataclass(frozen=True)
class ResumePoint:
    """Where a training stood when its checkpoint was saved."""

    step: int
    num_runs: int  # steps that this input and these random ops have served
    own_seed: int  # the seed of random ops to which the user gave none
    ended: str  # "": interrupted; "steps" or "data": ended as planned
    input_digest: str
    drawn: dict[str, int] = field(default_factory=dict)  # values that each random op has drawn
    states: tuple[tuple[str, str], ...] = ()  # file of each iterator's state, and its checksum
    state_runs: int = 0  # steps that the input had served when its state was taken, at most num_runs
    why_no_state: str = ""


def write_point(model_dir: str, point: ResumePoint, states: Sequence[bytes]) -> None:
    """Writes a point and the states of its iterators, atomically."""
    names = tuple((f"iterator-{index}", _checksum(state)) for index, state in enumerate(states))
    with atomic_directory(_folder(model_dir, point.step)) as folder:
        for (name, _), state in zip(names, states, strict=True):
            (folder / name).write_bytes(state)
        (folder / _POINT).write_text(point_as_json(replace(point, states=names)), encoding="utf-8")


def mark_ended(model_dir: str, step: int, ended: str) -> None:
    """Writes into the point of `step` that the training ended as planned."""
    path = _folder(model_dir, step) / _POINT
    if path.is_file():
        point = point_from_json(path.read_text(encoding="utf-8"))
        atomic_write_text(path, point_as_json(replace(point, ended=ended)))


def read_point(
    model_dir: str, step: int, note: Callable[[str], None]
) -> tuple[ResumePoint, list[bytes]] | None:
    """The point of `step` and the states of its iterators; None where there is no point, or it is damaged."""
    folder = _folder(model_dir, step)
    if not folder.is_dir():
        return None
    try:
        point = point_from_json((folder / _POINT).read_text(encoding="utf-8"))
        states = [(folder / name).read_bytes() for name, _ in point.states]
        if point.step != step or [_checksum(state) for state in states] != [sum for _, sum in point.states]:
            raise ValueError("its checksums do not fit")
    except (OSError, ValueError, TypeError, KeyError) as error:
        note(f"{folder} is damaged ({error}): the input starts from the beginning.")
        return None
    return point, states


def prune_points(model_dir: str, steps: set[int]) -> None:
    """Removes the points of checkpoints that are gone."""
    folder = Path(model_dir) / _FOLDER
    if folder.is_dir():
        clean_leftovers(folder)
    for step in saved_points(model_dir) - steps:
        remove_directory(_folder(model_dir, step))


def saved_points(model_dir: str) -> set[int]:
    """The steps that have a point."""
    try:
        names = [_NAME.fullmatch(path.name) for path in (Path(model_dir) / _FOLDER).iterdir()]
    except OSError:
        return set()
    return {int(name[1]) for name in names if name is not None}


def can_keep_points(model_dir: str) -> bool:
    """Whether points can be kept in this folder: it must be a local path, not a URL."""
    return "://" not in model_dir


def _folder(model_dir: str, step: int) -> Path:
    return Path(model_dir) / _FOLDER / f"step-{step}"


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def point_as_json(point: ResumePoint) -> str:
    """The text of a point's file."""
    return json.dumps(asdict(point), indent=1) + "\n"


def point_from_json(text: str) -> ResumePoint:
    """Reads what `point_as_json` wrote; raises a ValueError, TypeError or KeyError for any other text."""
    values: dict[str, Any] = json.loads(text)
    values["drawn"] = {str(name): int(count) for name, count in values["drawn"].items()}
    values["states"] = tuple((name, checksum) for name, checksum in values["states"])
    if any(Path(name).name != name for name, _ in values["states"]):
        raise ValueError("it names a file elsewhere")
    return ResumePoint(**values)
