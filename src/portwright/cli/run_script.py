"""Running a model folder's run.py, or an old script, inside this process, as `python run.py` would."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from portwright.discover import find_all_models, peek_target
from portwright.errors import UserError, suggest
from portwright.job.console import Console
from portwright.job.framework import TENSORFLOW, framework_of
from portwright.job.model_list import find_config
from portwright.job.signals import install_early
from portwright.job.vendor_env import hand_over_if_elsewhere

_OWN_COMMAND_LINES = ("estimator",)  # scripts for these have their own flags, and no params.yaml


def run_script(path: str, arguments: Sequence[str], *, compat: str | None = None) -> None:
    """`path` is a run.py, a folder that has one, or, where no such path exists, a reference model's name.

    With `compat`, imports of that library's names find Portwright's objects, and `path` may be any script.
    """
    if compat is not None:
        from portwright.compat.lend import check_library

        check_library(compat)
    script = _find_script(path)
    arguments = list(arguments)
    if compat not in _OWN_COMMAND_LINES:
        if compat is None and framework_of(script) == TENSORFLOW:
            from portwright.tensorflow import prepare

            prepare()  # before the script's import, so that a missing package is one line
        else:
            _continue_in_target_environment(path, arguments, compat)
        _add_params(script, arguments)
        install_early()  # before torch is imported: a signal during that import is remembered
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    if compat is None:
        runpy.run_path(str(script), run_name="__main__")
        return
    from portwright.compat.lend import explain_import_error, explain_syntax_error, lend

    lend(compat, str(script))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except ImportError as error:
        if "--debug" in arguments:
            raise
        raise explain_import_error(script, error) from error
    except SyntaxError as error:
        raise explain_syntax_error(error) from error


def _add_params(script: Path, arguments: list[str]) -> None:
    """Adds --params configs/params.yaml where none is given; replaces a config's name by its file."""
    for place, word in enumerate(arguments):
        if word in ("-h", "--help"):
            return
        if word in ("-p", "--params") and place + 1 < len(arguments):
            arguments[place + 1] = str(find_config(script.parent, arguments[place + 1]))
            return
        if word.startswith("--params="):
            arguments[place] = f"--params={find_config(script.parent, word.removeprefix('--params='))}"
            return
    default = script.parent / "configs" / "params.yaml"
    if default.is_file() and not {"-p", "--params"} & set(arguments):
        arguments += ["--params", str(default)]


def _continue_in_target_environment(path: str, arguments: list[str], compat: str | None) -> None:
    """Called before the script, and with it torch, is imported."""
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
    models = find_all_models()
    if path in models:
        return models[path] / "run.py"
    raise UserError(
        f"'{path}' is neither a run.py, a folder with one, nor a reference model.", suggest(path, models)
    )
