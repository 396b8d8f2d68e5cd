"""Running a model folder's run.py inside this process, as `python run.py` would."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from portwright.discover import find_models, peek_target
from portwright.errors import UserError, suggest
from portwright.job.console import Console
from portwright.job.hand_over import hand_over_if_elsewhere
from portwright.job.signals import install_early


def run_script(path: str, arguments: Sequence[str], *, compat: str | None = None) -> None:
    """`path` is a run.py, a folder that has one, or, where no such path exists, a reference model's name.

    With `compat`, imports of that library's names find Portwright's objects.
    """
    script = _find_script(path)
    arguments = list(arguments)
    _go_where_the_target_is(path, arguments, compat)
    if not any(
        word in ("-p", "--params", "-h", "--help") or word.startswith("--params=") for word in arguments
    ):
        default = script.parent / "configs" / "params.yaml"
        if default.is_file():
            arguments += ["--params", str(default)]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    install_early()  # before torch is imported: a signal in that time is remembered instead of killing the run
    if compat is None:
        runpy.run_path(str(script), run_name="__main__")
        return
    from portwright.compat.lend import explain_import_error, lend

    lend(compat)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except ImportError as error:
        if "--debug" in arguments:
            raise
        raise explain_import_error(script, error) from error


def _go_where_the_target_is(path: str, arguments: list[str], compat: str | None) -> None:
    """Before the script, and with it torch, is imported."""
    target = peek_target(arguments)
    if target is None or not {path, *arguments} <= set(sys.orig_argv):
        return  # inside another program, which must go on
    lent = [] if compat is None else ["--compat", compat]
    words = ["-m", "portwright.cli", "run", *lent, path, *arguments]
    hand_over_if_elsewhere(target.environment, words, Console().note)


def _find_script(path: str) -> Path:
    given = Path(path)
    if given.is_dir():
        given = given / "run.py"
    if given.is_file():
        return given.resolve()
    models = find_models()
    if path in models:
        return models[path] / "run.py"
    raise UserError(
        f"'{path}' is neither a run.py, a folder with one, nor a reference model.", suggest(path, models)
    )
