"""Finds the line of the user's code that is running."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import CodeType, FrameType, TracebackType

import torch

from portwright.watching.place import HIDDEN, LIBRARY, USER, Owners, Place

_TORCH = f"{Path(torch.__file__).parent}/"


def _is_torchs(file: str) -> bool:
    return file.startswith((_TORCH, "<frozen", "<eval_with_key", "<__array_function__"))


class PlaceFinder:
    """Finds the innermost line of the user's code on the stack; each line is classified once.

    Code of torch, of installed packages and of Portwright is not the user's, except Portwright's models and their networks and, where `root`
    is given, what lies under it. Where no line is the user's, the innermost one outside torch is taken.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._kind = Owners(root, _is_torchs, ("models/", "networks/"), ("layers/", "losses/")).of
        self._kinds: dict[CodeType, int] = {}
        self._places: dict[tuple[CodeType, int], Place] = {}

    def find(self, frame: FrameType | None, boundaries: tuple[CodeType, ...]) -> tuple[Place | None, bool]:
        """The place, and whether it is the user's own code; frames outside of a boundary do not count."""
        kinds, fallback = self._kinds, None
        while frame is not None:
            code = frame.f_code
            if code in boundaries:
                break
            kind = kinds.get(code)
            if kind is None:
                kind = kinds[code] = self._kind(code.co_filename)
            if kind == USER:
                return self._place(code, frame.f_lineno), True
            if kind == LIBRARY and fallback is None:
                fallback = frame
            frame = frame.f_back
        if fallback is None:
            return None, False
        return self._place(fallback.f_code, fallback.f_lineno), False

    def find_raised(self, error: BaseException, boundaries: tuple[CodeType, ...]) -> Place | None:
        """The innermost line of the user's code in an exception's traceback."""
        best: tuple[int, Place] | None = None
        trace: TracebackType | None = error.__traceback__
        inside = False
        while trace is not None:
            code = trace.tb_frame.f_code
            kind = self._kind(code.co_filename)
            if inside and kind != HIDDEN and (best is None or kind >= best[0]):
                best = kind, self._place(code, trace.tb_lineno)
            inside = inside or code in boundaries
            trace = trace.tb_next
        return None if best is None else best[1]

    def _place(self, code: CodeType, line: int) -> Place:
        key = code, line
        place = self._places.get(key)
        if place is None:
            name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
            text = linecache.getline(code.co_filename, line).strip()
            place = self._places[key] = Place(code.co_filename, line, name, text)
        return place
