"""Lending the names of another library to code that was written for it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from portwright.errors import PortwrightError, UserError, suggest
from portwright.job.blame import blame

LIBRARIES = ("modelzoo", "estimator")
_LENT_ROOTS = ("modelzoo", "common", "cerebras", "tensorflow", "tensorflow_estimator")


def check_library(library: str) -> None:
    """Refuses a library whose names are not lent."""
    if library not in LIBRARIES:
        raise UserError(f"unknown library '{library}' for --compat.", suggest(library, LIBRARIES))


def lend(library: str, script: str = "") -> Callable[[], None]:
    """Makes later imports of the library's names in this process find Portwright's objects.

    `script` is the program that imports them. Returns a function that removes the finders again.
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
    """The error to show when a script imports a name that is neither lent nor installed."""
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
    place = _place_of(package)
    if isinstance(error, ModuleNotFoundError) and place is None:
        return UserError(
            f"{where} imports '{error.name}', which is neither installed nor beside the script.",
            f"The script's README or requirements tell what has it: a package that is called '{package}' can be somebody else's.",
        )
    is_missing = isinstance(error, ModuleNotFoundError)
    what = f"there is no module '{error.name}' in {place}" if is_missing else str(error)
    return UserError(f"{where}: {what}.", f"Take a release of {package or 'it'} that has it, or see --debug.")


def explain_error(script: Path) -> Callable[[Exception], PortwrightError]:
    """The error to show when a script that uses lent names fails."""

    def explain(error: Exception) -> PortwrightError:
        return explain_import_error(script, error) if isinstance(error, ImportError) else blame(error)

    return explain


def _place_of(package: str) -> str | None:
    """The path of an importable package; None if there is none."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    return None if spec is None else next(iter(spec.submodule_search_locations or ()), spec.origin or package)


def explain_syntax_error(error: SyntaxError) -> UserError:
    """The error to show for a file with a syntax error: old code is often Python 2."""
    return UserError(
        f"{error.filename}:{error.lineno}: {error.msg}.",
        "If the code is Python 2's, turn it with lib2to3 or by hand first; otherwise mend the line.",
    )
