"""Tracks which module of the model is running."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from portwright.graph.capturing.tape import Tape
from portwright.patched import patched

_LIBRARIES = ("torch.", "portwright.layers.", "portwright.losses.")
_names: WeakKeyDictionary[type[nn.Module], str | None] = WeakKeyDictionary()


@contextmanager
def watch_modules(tape: Tape, paths: dict[int, str]) -> Iterator[None]:
    """Keeps the tape's stack of running modules; modules that are not the model's own belong to the one that calls them.

    Compiled modules run uncompiled, so that their ops are seen.
    """
    original = nn.Module.__call__
    thread = threading.get_ident()

    @functools.wraps(original)
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(module, *args, **kwargs)
        written = getattr(module, "_orig_mod", None)
        if isinstance(written, nn.Module):
            return written(*args, **kwargs)
        path = paths.get(id(module))
        tape.modules.append((tape.module if path is None else path, _library_name(module)))
        outer, tape.call = tape.call, ""
        try:
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        except Exception:
            if tape.failed_module is None:
                tape.failed_module = tape.module
            raise
        finally:
            tape.call = outer
            tape.modules.pop()

    with patched(nn.Module, "__call__", call):
        yield


def _library_name(module: nn.Module) -> str | None:
    """The class of a library whose code a module runs; '' for code of the user's, None for a container of modules."""
    kind = type(module)
    if kind not in _names:
        owner = next((c for c in kind.__mro__ if "forward" in vars(c)), kind)
        name = f"{owner.__module__}.{owner.__qualname__}"
        if owner.__module__ == nn.Sequential.__module__:
            _names[kind] = None
        else:
            _names[kind] = name if name.startswith(_LIBRARIES) else ""
    return _names[kind]
