"""Which line of the user's code made an op: the innermost one of its stack that is neither TensorFlow's nor Portwright's."""

from __future__ import annotations

import linecache
import sysconfig
from pathlib import Path
from typing import Any

import portwright
from portwright.watching.place import Place

_USER, _LIBRARY, _HIDDEN = 2, 1, 0
_OURS = f"{Path(portwright.__file__).parent}/"
_OUR_MODELS = f"{_OURS}tensorflow/models/"
_OUR_BLOCKS = f"{_OURS}tensorflow/layers/"
_INSTALLED = ("/site-packages/", "/dist-packages/")
_FRAMEWORK = ("tensorflow/", "tf_keras/", "keras/", "tensorflow_estimator/", "tensorflow_probability/")
_STANDARD = tuple(
    {f"{Path(sysconfig.get_path(name)).resolve()}/" for name in ("stdlib", "platstdlib")}
    | {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")}
)


class OpPlaces:
    """Places of ops; ops made by one call have one stack, which is read once.

    Code under `root` is the user's even where it is installed. Where no line is the user's, the innermost one of a package
    outside TensorFlow is taken, such as a layer of Portwright's.
    """

    def __init__(self, root: Path | None = None) -> None:
        # The path as given and the resolved one: Python names a file by the path through which it was imported.
        self._roots = () if root is None else (f"{root.resolve()}/", f"{root.absolute()}/")
        self._by_stack: dict[Any, Place | None] = {}
        self._kinds: dict[str, int] = {}

    def find(self, op: Any) -> Place | None:
        """The place of an op; None where no line of Python made it, as with a graph read from a file."""
        stack = op.traceback
        if stack is None:
            return None
        if stack not in self._by_stack:
            self._by_stack[stack] = self._look(stack)
        return self._by_stack[stack]

    def _look(self, stack: Any) -> Place | None:
        best = None
        for frame in reversed(stack):
            kind = self._kinds.get(frame.filename)
            if kind is None:
                kind = self._kinds[frame.filename] = self._kind(frame.filename)
            if kind == _USER:
                return _place(frame)
            if kind == _LIBRARY and best is None:
                best = frame
        return None if best is None else _place(best)

    def _kind(self, file: str) -> int:
        if file.startswith("<"):
            return _HIDDEN
        for root in self._roots:
            if file.startswith(root) and not any(part in file[len(root) - 1 :] for part in _INSTALLED):
                return _USER
        if file.startswith(_OUR_MODELS):
            return _USER
        if file.startswith(_OURS):
            return _LIBRARY if file.startswith(_OUR_BLOCKS) else _HIDDEN
        for part in _INSTALLED:
            if part in file:
                return _HIDDEN if file.rpartition(part)[2].startswith(_FRAMEWORK) else _LIBRARY
        return _HIDDEN if file.startswith(_STANDARD) else _USER


def _place(frame: Any) -> Place:
    line = int(frame.lineno)
    return Place(frame.filename, line, frame.name, linecache.getline(frame.filename, line).strip())
