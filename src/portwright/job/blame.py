"""Tells in one line where an exception of somebody else's code came from."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from portwright.errors import ExitStatus, PortwrightError, UserError

_OWN = os.sep + "portwright" + os.sep
_MODELS = (_OWN + "models" + os.sep, f"{_OWN}tensorflow{os.sep}models{os.sep}")


def is_users(filename: str) -> bool:
    """Whether a file is the user's own, or one of a reference model, which counts as such."""
    if filename.startswith("<"):
        return False
    return "site-packages" not in filename and (
        _OWN not in filename or any(models in filename for models in _MODELS)
    )


def blame(error: Exception) -> PortwrightError:
    """The error to show for an exception of somebody else's code, mostly the user's model or data, with its place."""
    text = " ".join(str(error).split()) or "no message"
    if "onnection closed by peer" in text or "onnection reset by peer" in text:
        return UserError("another process of this run has ended.", "Its own message says why.")
    return UserError(
        f"{type(error).__name__} at {place_of(error)}: {text[:400]}",
        "Run again with --debug to see the traceback.",
    )


@contextmanager
def refusing_exits(told: Callable[[], str]) -> Iterator[None]:
    """Turns a SystemExit of code that a run calls, such as a loader, into an error: the work is not done.

    `told` says what was ended, and when. The user's os._exit(0) becomes such an exit too, except in a child process.
    """
    exit_now, process = os._exit, os.getpid()

    def raise_exit(status: int) -> NoReturn:
        if status != 0 or os.getpid() != process or not is_users(sys._getframe(1).f_code.co_filename):
            exit_now(status)
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(f"os._exit({status})")
        print(f"error: os._exit(0) in a thread ended {told()}.", file=sys.stderr, flush=True)
        exit_now(int(ExitStatus.USAGE))

    os._exit = raise_exit
    try:
        yield
    except SystemExit as stop:
        raise UserError(
            f"SystemExit({str(stop.code)[:200]}) at {place_of(stop)} ended {told()}.",
            "Let it return or raise another error. What is in model_dir is whole; the same command goes on from there.",
        ) from stop
    finally:
        os._exit = exit_now


def place_of(error: BaseException) -> str:
    """File, line and function: the innermost of the user's own, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if is_users(frame.filename)), frames[-1])
    return f"{place.filename}:{place.lineno} in {place.name}"
