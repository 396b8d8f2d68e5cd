"""Redirects a model's calls of torch while its forward runs, and records them."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from portwright.errors import UnsupportedError
from portwright.layers.legal.checkpointing import plain_calls
from portwright.layers.legal.redirects import redirects_for
from portwright.legal_forms import FORMS, Form

__all__ = ["Swap"]

_OWN = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_COPIES_OF_VIEWS = ("diagonal", "unfold_dimension")
_IN_PLACE_OPERATORS = tuple(
    f"__i{name}__"
    for name in (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    )
)
_CHECKPOINT = next(form for form in FORMS if form.name == "checkpoint")


@dataclass(frozen=True)
class Swap:
    """One module or call that a legal form replaces."""

    module: str
    """Its path in the model; empty for the model itself."""
    what: str
    """Torch's name of it: nn.LSTM, F.one_hot, Tensor.flip."""
    form: str
    reason: str
    file: str = ""
    line: int = 0
    """Where the user's code makes the call; 0 for a module, which is swapped before anything runs."""


class CallLog:
    """The swaps of one model; it grows when a call is redirected for the first time."""

    def __init__(self, target: str, swaps: Sequence[Swap] = ()) -> None:
        self.target = target
        self._swaps = dict.fromkeys(swaps)
        self._seen: set[tuple[str, str, int]] = set()
        self._running = threading.local()
        self._lock = threading.Lock()

    @property
    def swaps(self) -> tuple[Swap, ...]:
        return tuple(self._swaps)

    def add(self, swap: Swap) -> None:
        with self._lock:
            self._swaps.setdefault(swap)

    def note(self, what: str, form: Form, root: nn.Module) -> None:
        """Records a redirected call, once for each line that makes it."""
        file, line = _caller()
        key = (what, file, line)
        if key not in self._seen:
            self._seen.add(key)
            self.add(Swap(_running_module(root), what, f"legal.{form.name}", form.why, file, line))

    @contextmanager
    def redirecting(self, root: nn.Module) -> Iterator[None]:
        """Within, refused calls go to their legal forms; a nested use changes nothing."""
        if getattr(self._running, "active", False):
            yield
            return
        self._running.active = True
        try:
            with (
                plain_calls(lambda: self.note("torch.utils.checkpoint.checkpoint", _CHECKPOINT, root)),
                RedirectMode(self, root),
            ):
                yield
        finally:
            self._running.active = False

    def __deepcopy__(self, memo: dict[int, Any]) -> CallLog:
        return CallLog(self.target, self.swaps)

    def __reduce__(self) -> Any:
        return CallLog, (self.target, self.swaps)


class RedirectMode(TorchFunctionMode):
    """Sees every call of torch's API that the model makes. Calls inside torch's own composite functions are not seen, so those
    have forms of their own."""

    def __init__(self, log: CallLog, root: nn.Module) -> None:
        super().__init__()
        self._log, self._root = log, root
        self._redirects = redirects_for(log.target)
        # by id; kept alive while the forward runs, so that no other tensor gets the id
        self._copies: dict[int, tuple[Any, str]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if self._copies and args and _writes(func):
            self._refuse_write(func, args[0])
        redirect = self._redirects.get(func)
        # the SDK wraps functions of torch's modules in place
        if redirect is None and hasattr(func, "__wrapped__"):
            redirect = self._redirects.get(inspect.unwrap(func))
        if redirect is None or not redirect.applies(args, options):
            return func(*args, **options)
        self._log.note(redirect.what, redirect.form, self._root)
        # without out=None
        result = redirect.function(*args, **{k: v for k, v in options.items() if k != "out"})
        if redirect.form.name in _COPIES_OF_VIEWS:
            self._copies[id(result)] = (result, redirect.what)
        return result

    def _refuse_write(self, func: Callable[..., Any], written: Any) -> None:
        base = written._base if isinstance(written, torch.Tensor) and written._is_view() else None
        for tensor in (written, base):
            if id(tensor) in self._copies:
                what = self._copies[id(tensor)][1]
                raise UnsupportedError(
                    f"{func.__name__} writes to what {what} gave: a view of the input in torch, a copy in its legal form.",
                    "Write with torch.where and a comparison of aranges instead.",
                )


def _writes(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name == "__setitem__" or name in _IN_PLACE_OPERATORS
    return name.endswith("_")


def _caller() -> tuple[str, int]:
    """The innermost line outside of torch, the SDK and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OWN, _TORCH, "<")) and "/cerebras/pytorch/" not in file:
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _running_module(root: nn.Module) -> str:
    """The name of the model's innermost module that is running."""
    names: dict[int, str] = {id(module): name for name, module in root.named_modules()}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            return names[id(owner)]
        frame = frame.f_back
    return ""
