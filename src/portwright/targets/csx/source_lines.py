"""Which line of the user's model a traced op belongs to, in the forward pass and in the backward pass.

The SDK keeps the Python stack of every op. In the backward pass that stack ends in torch's engine; so each gradient function
gets a note of the line that made it, in the name under which the SDK files the ops that follow.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch

from portwright.graph.capturing.places import PlaceFinder
from portwright.graph.graph import Place

_MARK = re.compile(r"@pw(?P<number>\d+)$")


class SourceLines:
    """Follows one trace of a step whose code is `boundary`."""

    def __init__(self, backend: Any, boundary: CodeType) -> None:
        self._backend, self.boundary = backend, boundary
        self.finder = PlaceFinder()
        self._noted: list[tuple[Place, str]] = []  # place and module, by number
        self.current: tuple[Place, str] | None = None  # whose gradient is being computed

    @contextmanager
    def following(self) -> Iterator[None]:
        from cerebras.pytorch.core.function_mode import register_function_mode_forward_hook

        handle = register_function_mode_forward_hook(self._on_call)
        try:
            yield
        finally:
            handle.remove()

    def _on_call(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any, result: Any) -> None:
        nodes = {id(node): node for node in _gradient_functions(result)}
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
        """The innermost line of the user's among recorded frames (file, line, function), outermost first."""
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


def _gradient_functions(result: Any) -> Iterator[Any]:
    for value in result if isinstance(result, tuple | list) else (result,):
        if isinstance(value, torch.Tensor) and value.grad_fn is not None:
            yield value.grad_fn
