"""Saying in one line where an exception that is not ours came from."""

from __future__ import annotations

import os
import traceback

from portwright.errors import PortwrightError, UserError

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
    """An exception that is not ours, most often from the user's model or data: say where, in one line."""
    text = " ".join(str(error).split()) or "no message"
    if "onnection closed by peer" in text or "onnection reset by peer" in text:
        return UserError("another process of this run has ended.", "Its own message says why.")
    return UserError(
        f"{type(error).__name__} at {place_of(error)}: {text[:400]}",
        "Run again with --debug to see the traceback.",
    )


def place_of(error: BaseException) -> str:
    """File, line and function: the innermost of the user's own, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if is_users(frame.filename)), frames[-1])
    return f"{place.filename}:{place.lineno} in {place.name}"
