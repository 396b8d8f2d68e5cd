"""Lending the names of another library to code that was written for it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from portwright.errors import PortwrightError, UserError, suggest

LIBRARIES = ("modelzoo", "estimator")
_LENT_ROOTS = ("modelzoo", "common", "cerebras", "tensorflow", "tensorflow_estimator")


def check_library(library: str) -> None:
    """Refuses a library whose names are not lent."""
    if library not in LIBRARIES:
        raise UserError(f"unknown library '{library}' for --compat.", suggest(library, LIBRARIES))


def lend(library: str, script: str = "") -> Callable[[], None]:
    """From here on, imports of the library's names in this process find Portwright's objects.

    `script` is the program that asks. What is returned takes the finders out again; what was imported stays.
    """
    check_library(library)
    if library == "estimator":
        from portwright.compat.estimator_lend import lend_estimator

        return lend_estimator(script)
    from portwright.compat.modelzoo_names import make_finder
    from portwright.compat.old_calls import accept_old_calls

    finder = make_finder()
    finder.install()
    accept_old_calls()
    return finder.remove


def explain_import_error(script: Path, error: ImportError) -> PortwrightError:
    """What to tell a user whose script imports something that is neither lent nor installed."""
    if isinstance(error, PortwrightError):
        return error
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    own = next((f for f in reversed(frames) if Path(f.filename).parent != Path(__file__).parent), None)
    where = f"{own.filename}:{own.lineno}" if own is not None else str(script)
    package = (error.name or "").partition(".")[0]
    if package in _LENT_ROOTS:
        text = str(error).removesuffix(" (unknown location)").removesuffix(".")
        return UserError(
            f"{where}: {text}.",
            "docs/compat.md says what is lent; everything else must lie where the script finds it.",
        )
    if isinstance(error, ModuleNotFoundError):
        return UserError(
            f"{where} imports '{error.name}', which is not installed.",
            f"Install it, such as by pip install {package}.",
        )
    return UserError(
        f"{where}: {error}.", f"Install a release of {package or 'it'} that has it, or see --debug."
    )


def explain_syntax_error(error: SyntaxError) -> UserError:
    """What to tell a user whose file this Python cannot read: old code is often Python 2's."""
    return UserError(
        f"{error.filename}:{error.lineno}: {error.msg}.",
        "If the code is Python 2's, turn it with lib2to3 or by hand first; otherwise mend the line.",
    )
