"""Where each op of a trace comes from: the user's line, and the module that was running."""

from __future__ import annotations

import bisect
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from portwright.emulate.poptorch._impl import createPoptorchError

_NOT_THE_USERS = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),  # all emulators
    "<eval_with_key>",  # code that torch makes
    "<frozen ",
)

_STANDARD = sysconfig.get_paths()["stdlib"]
_INSTALLED = ("site-packages", "dist-packages")  # folders of what others wrote, inside of Python's own


def is_users(filename: str) -> bool:
    """Whether a file is neither torch's, Python's nor an emulator's."""
    if filename.startswith(_NOT_THE_USERS):
        return False
    return not filename.startswith(_STANDARD) or any(folder in filename for folder in _INSTALLED)


class Source(NamedTuple):
    line: str | None = None  # file:line
    module: str | None = None  # '' is the model itself


class Sources:
    """Finds the source of the op that is running; that of a gradient's op is the one of the forward op it belongs to."""

    def __init__(self) -> None:
        self._running: list[tuple[nn.Module, str]] = []
        self._numbers: list[int] = []  # that autograd gave to forward ops, going up
        self._by_number: list[Source] = []
        self._is_users: dict[CodeType, bool] = {}

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follows the modules that are called inside."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def find(self, is_backward: bool) -> Source:
        if is_backward:
            node = torch._C._current_autograd_node()
            if node is None:
                return Source()
            # What autograd made behind an op, such as CopySlices, belongs to the op before it.
            place = bisect.bisect_right(self._numbers, node._sequence_nr()) - 1
            return self._by_number[place] if place >= 0 else Source()
        source = Source(self._line(), self._running[-1][1] if self._running else None)
        # Autograd numbers an op just before it runs it: the first one seen behind a number is that op.
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        if not self._numbers or number > self._numbers[-1]:
            self._numbers.append(number)
            self._by_number.append(source)
        return source

    def _line(self) -> str | None:
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            known = self._is_users.get(code)
            if known is None:
                known = self._is_users[code] = is_users(code.co_filename)
            if known:
                return f"{code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def _enter(self, module: nn.Module, args: Any) -> None:
        if isinstance(module, torch.jit.ScriptModule) and next(module.parameters(), None) is not None:
            raise createPoptorchError(
                f"{self._line() or 'the model'}: a module was made by torch.jit, and keeps its parameters out of reach: they would not be "
                "trained. Use the module as it was written."
            )
        if not self._running:
            self._running.append((module, ""))
            return
        parent, path = self._running[-1]
        name = next(
            (name for name, child in parent.named_modules() if child is module), type(module).__name__
        )
        self._running.append((module, f"{path}.{name}" if path and name else path or name))

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        while self._running and self._running.pop()[0] is not module:
            pass
