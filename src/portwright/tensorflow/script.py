"""A TensorFlow folder's run.py, run up to its call of run(): what it passes there, and its params."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import portwright.tensorflow
from portwright.discover import find_all_models
from portwright.errors import PortwrightError, UserError, suggest
from portwright.job.arguments import parse_arguments
from portwright.job.blame import blame
from portwright.job.params import Params
from portwright.job.run_params import load_run_params
from portwright.tensorflow import entry
from portwright.tensorflow.run_parts import Parts


@dataclass(frozen=True)
class Script:
    """A folder's parts, as a run would have them."""

    path: Path
    parts: Parts
    params: Params


class _Asked(BaseException):
    """Carries what a script passes to run() out of it; not an Exception, so that no script catches it."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        super().__init__()
        self.parts = parts


def _intercept(
    model_fn: Any,
    train_input_fn: Any = None,
    eval_input_fn: Any = None,
    default_params_fn: Any = None,
    extra_args_parser_fn: Any = None,
    *,
    predict_input_fn: Any = None,
    argv: Sequence[str] | None = None,
) -> None:
    del argv
    given = dict(locals())
    raise _Asked(given)


def find_script(path: str) -> Path:
    """The run.py that a path or the name of a reference model means."""
    given = Path(path)
    if given.is_dir():
        given = given / "run.py"
    if given.is_file():
        return given.resolve()
    models = find_all_models()
    for name in (path, f"tensorflow/{path}"):
        if name in models and name.startswith("tensorflow/"):
            return models[name] / "run.py"
    raise UserError(
        f"'{path}' is neither a run.py, a folder with one, nor a reference model of TensorFlow.",
        suggest(path, [name for name in models if name.startswith("tensorflow/")]),
    )


def read_script(path: str, params: Path | None = None, overrides: Sequence[str] = ()) -> Script:
    """Runs the user's files as far as they describe the model, never further: nothing is trained."""
    script = find_script(path)
    params_path = params or script.parent / "configs" / "params.yaml"
    if not params_path.is_file():
        raise UserError(f"there is no params file '{params_path}'.", "Give one with --params.")
    words = ["CPU", "--mode", "train", "--params", str(params_path.resolve())]
    words += [word for text in overrides for word in ("-D", text)]
    with mock.patch.object(sys, "argv", [str(script), *words]):  # as the script would find it
        parts = Parts(**_ask(script))
        parts.check()
        arguments = parse_arguments(words, parts.extra_args_parser_fn, entry.STYLE)
        return Script(script, parts, load_run_params(arguments, parts.default_params_fn))


def _ask(script: Path) -> Mapping[str, Any]:
    sys.path.insert(0, str(script.parent))
    with (
        mock.patch.object(entry, "run", _intercept),
        mock.patch.object(portwright.tensorflow, "run", _intercept),
    ):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except _Asked as asked:
            return asked.parts
        except SystemExit as stop:
            raise UserError(
                f"{script} ended with {stop.code!r} before it called run().",
                "Call portwright.tensorflow.run(model_fn, train_input_fn, ...), as `portwright new --framework tensorflow` does.",
            ) from stop
        except PortwrightError:
            raise
        except Exception as error:
            raise blame(error) from error
    raise UserError(
        f"{script} never calls portwright.tensorflow.run().",
        "A folder to learn from: portwright new NAME --framework tensorflow.",
    )
