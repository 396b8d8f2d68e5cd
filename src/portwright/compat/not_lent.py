"""The error for a part of another library that Portwright does not lend: its name, the user's line, and a cure."""

from __future__ import annotations

import sys
from types import FrameType

from portwright.compat.tensorflow_evidence import is_users_file
from portwright.errors import UserError


class NotLentError(UserError, AttributeError):
    """A UserError for the command line, and an AttributeError for code that asks with hasattr."""

    def __init__(self, message: str, cure: str = "") -> None:
        UserError.__init__(self, message, cure)


class NotLentModuleError(UserError, ModuleNotFoundError):
    """A UserError for the command line, and a ModuleNotFoundError for code that tries an import."""

    def __init__(self, message: str, cure: str = "", name: str = "") -> None:
        UserError.__init__(self, message, cure)
        self.name = name


def users_line() -> str:
    """`file:line: ` of the innermost frame that is the user's, or nothing where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_globals.get("__file__")
        if path is not None and frame.f_code.co_filename == path and is_users_file(path):
            return f"{path}:{frame.f_lineno}: "
        frame = frame.f_back
    return ""
