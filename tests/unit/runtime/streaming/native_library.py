"""The native Adam for tests: skipped, and counted, where the machine has no compiler; anything else is a failure."""

from __future__ import annotations

import functools
import shutil

import pytest

from portwright.runtime.streaming.native import NativeAdam, load_native


@functools.cache
def load() -> NativeAdam:
    notes: list[str] = []
    native = load_native(notes.append)
    if native is None:
        if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
            pytest.skip("no C compiler")
        raise AssertionError(f"the native library was not loaded: {notes}")
    return native
