"""Finds the line of the user's model that a traced op of the forward or backward pass belongs to.

The SDK keeps the Python stack of every op. In the backward pass that stack ends in torch's engine. So the name of the SDK's
scope gets a mark for each gradient function, by which the line that made the function is found.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch

from portwright.watching.place import Place
from portwright.watching.places import PlaceFinder

_MARK = re.compile(r"@pw(?P<number>\d+)$")


class SourceLines:
    """Follows one trace of a step whose code is `boundary`."""

    def __init__(self, backend: Any, boundary: CodeType) -> None:
        self._backend, self.boundary = backend, boundary
        self.finder = PlaceFinder()
        self._noted: list[tuple[Place, str]] = []  # place and module, by the mark's number
        self.current: tuple[Place, str] | None = None  # of the call whose gradient is being computed

    @contextmanager
    def following(self) -> Iterator[None]:
        from cerebras.pytorch.core.function_mode import register_function_mode_forward_hook

        handle = register_function_mode_forward_hook(self._on_call)
        try:
            yield
        finally:
            handle.remove()

    def _on_call(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any, result: Any) -> None:
        made = result if isinstance(result, tuple | list) else (result,)
        functions = [value.grad_fn for value in made if isinstance(value, torch.Tensor)]
        nodes = {id(node): node for node in functions if node is not None}
        if not nodes:
            return
        place, _ = self.finder.find(sys._getframe(1), (self.boundary,))
        if place is None:
            return
        scope = str(self._backend._impl.current_scope_name)
        number = len(self._noted)
        self._noted.append((place, scope))
        for node in nodes.values():
            node.register_prehook(lambda grads, number=number: self._enter(number))

    def _enter(self, number: int) -> None:
        from cerebras.pytorch.core.name_scope import ScopeName

        self.current = self._noted[number]
        scope = self.current[1].replace(".fwd", ".bwd")
        self._backend._impl.set_scope_name(ScopeName(f"{scope}@pw{number}"))

    def noted(self, scope: str) -> tuple[Place, str] | None:
        """The forward line and module that a scope of the backward pass was marked with."""
        match = _MARK.search(scope)
        return self._noted[int(match["number"])] if match else None

    def among(self, frames: Iterable[tuple[str, int, str]]) -> Place | None:
        """The user's innermost line among recorded frames (file, line, function), outermost first."""
        best: tuple[int, Place] | None = None
        inside = False
        for file, line, function in frames:
            if inside:
                kind = self.finder._kind(file)
                if kind and (best is None or kind >= best[0]):
                    best = kind, Place(file, line, function)
            inside = inside or (file == self.boundary.co_filename and function == self.boundary.co_name)
        return None if best is None else best[1]


def strip_mark(scope: str) -> str:
    return _MARK.sub("", scope)
