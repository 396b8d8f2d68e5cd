"""Runs a script or module as the interpreter would: as __main__, with the path and the arguments that it expects."""

from __future__ import annotations

import concurrent.futures.thread as pools
import importlib.machinery
import importlib.util
import io
import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_as_main(words: Sequence[str]) -> None:
    """Runs `SCRIPT ARGS` or `-m MODULE ARGS`, and waits for the threads that it leaves."""
    if words[0] == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = ["-m", *words[2:]]
        code, spec = _find_module(words[1])
        main = _make_main(spec.origin or "")
        main.__spec__ = spec
        main.__package__ = spec.parent
        sys.argv[0] = spec.origin or words[1]
    else:
        path = Path(words[0])
        sys.argv = list(words)
        if path.is_dir():
            sys.path.insert(0, str(path))
            path = path / "__main__.py"
        else:
            sys.path.insert(0, str(path.resolve().parent))
        whole = str(path.absolute())
        with io.open_code(whole) as file:
            code = compile(file.read(), whole, "exec", dont_inherit=True)
        main = _make_main(whole)
    sys.modules["__main__"] = main
    failed: list[BaseException] = []
    told = threading.excepthook

    def remember(failure: threading.ExceptHookArgs) -> None:
        if failure.exc_value is not None:
            failed.append(failure.exc_value)
        told(failure)

    threading.excepthook = remember
    ours = set(threading.enumerate())
    exec(code, main.__dict__)
    _join([thread for thread in threading.enumerate() if thread not in ours and not thread.daemon])
    if failed:
        raise SystemExit(1) from failed[0]  # which the thread has printed


def _join(threads: Sequence[threading.Thread]) -> None:
    """Waits for threads as Python does at its end: executors finish their work first."""
    if any(thread in pools._threads_queues for thread in threads):
        pools._python_exit()
    for thread in threads:
        thread.join()


def _make_main(file: str) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__file__ = file
    main.__dict__["__builtins__"] = __builtins__
    main.__dict__["__cached__"] = None
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", file)
    return main


def _find_module(name: str) -> tuple[Any, importlib.machinery.ModuleSpec]:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is not None and spec.submodule_search_locations is not None:
        return _find_module(f"{name}.__main__")
    loader: Any = None if spec is None else spec.loader
    code = None if loader is None else loader.get_code(name)
    if spec is None or code is None:
        raise SystemExit(f"No module named {name}")
    return code, spec
