"""Which line of the user's code made an op: the innermost one of its stack that is neither TensorFlow's nor Portwright's."""

from __future__ import annotations

import linecache
from functools import cache
from pathlib import Path
from typing import Any

from portwright.watching.place import INSTALLED, LIBRARY, USER, Owners, Place

_FRAMEWORK = tuple(
    f"{part}{package}/"
    for part in INSTALLED
    for package in ("tensorflow", "tf_keras", "keras", "tensorflow_estimator", "tensorflow_probability")
)


def _is_tensorflows(file: str) -> bool:
    return file.startswith("<") or any(part in file for part in _FRAMEWORK)


class OpPlaces:
    """Places of ops; ops made by one call have one stack, which is read once.

    Code under `root` is the user's even where it is installed. Where no line is the user's, the innermost one of a package
    outside TensorFlow is taken, such as a layer of Portwright's.
    """

    def __init__(self, root: Path | None = None) -> None:
        owners = Owners(root, _is_tensorflows, ("tensorflow/models/",), ("tensorflow/layers/",))
        self._look, self._owner = cache(self._look_at), cache(owners.of)

    def find(self, op: Any) -> Place | None:
        """The place of an op; None where no line of Python made it, as with a graph read from a file."""
        stack = op.traceback
        return None if stack is None else self._look(stack)

    def _look_at(self, stack: Any) -> Place | None:
        best = None
        for frame in reversed(stack):
            kind = self._owner(frame.filename)
            if kind == USER:
                return _place(frame)
            if kind == LIBRARY and best is None:
                best = frame
        return None if best is None else _place(best)


def _place(frame: Any) -> Place:
    line = int(frame.lineno)
    return Place(frame.filename, line, frame.name, linecache.getline(frame.filename, line).strip())
