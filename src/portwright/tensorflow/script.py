"""Runs a user's script up to the training call, and returns what it passes to run() or to an Estimator, and its params."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import portwright.tensorflow
from portwright.discover import find_all_models
from portwright.errors import PortwrightError, UserError, suggest
from portwright.job.arguments import parse_arguments
from portwright.job.blame import blame
from portwright.job.params import Params
from portwright.job.run_params import load_run_params
from portwright.patched import patched
from portwright.tensorflow import entry
from portwright.tensorflow.cerebras_estimator import CerebrasEstimator
from portwright.tensorflow.estimator import Estimator
from portwright.tensorflow.run_parts import Parts


@dataclass(frozen=True)
class Script:
    """The parts and params of a folder's run.py, as a run would have them."""

    path: Path
    parts: Parts
    params: Params


class _Intercepted(BaseException):
    """Carries the arguments of run() or of an Estimator out of the script; not an Exception, so that the script does not catch it."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        super().__init__()
        self.parts = parts


def _intercept_run(
    model_fn: Any,
    train_input_fn: Any = None,
    eval_input_fn: Any = None,
    default_params_fn: Any = None,
    extra_args_parser_fn: Any = None,
    *,
    predict_input_fn: Any = None,
    argv: Sequence[str] | None = None,
) -> None:
    given = dict(locals())
    del given["argv"]
    raise _Intercepted(given)


def _intercept_estimator(self: Any, input_fn: Any, *args: Any, **kwargs: Any) -> None:
    raise _Intercepted({"estimator": self, "input_fn": input_fn})


def find_script(path: str) -> Path:
    """The run.py at a path, or of the reference model with that name."""
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
    """Runs the user's files until they call run(); nothing is trained."""
    script = find_script(path)
    words = words_of(script, params, overrides)
    asked = ask_script(script, words)
    if "estimator" in asked:
        raise UserError(
            f"{script} trains an Estimator itself and never calls portwright.tensorflow.run().",
            "A folder to learn from: portwright new NAME --framework tensorflow.",
        )
    return take_parts(script, words, asked)


def words_of(script: Path, params: Path | None, overrides: Sequence[str]) -> list[str]:
    """The command line of a training on the CPU."""
    path = params or script.parent / "configs" / "params.yaml"
    if not path.is_file():
        raise UserError(f"there is no params file '{path}'.", "Give one with --params.")
    changes = [word for text in overrides for word in ("-D", text)]
    return ["CPU", "--mode", "train", "--params", str(path.resolve()), *changes]


def take_parts(script: Path, words: Sequence[str], asked: Mapping[str, Any]) -> Script:
    """The arguments that the script passed to run(), and the params of the command line."""
    parts = Parts(**asked)
    parts.check()
    arguments = parse_arguments(words, parts.extra_args_parser_fn, entry.STYLE)
    with patched(sys, "argv", [str(script), *words]):  # the arguments that the script sees in a run
        return Script(script, parts, load_run_params(arguments, parts.default_params_fn))


def ask_script(
    script: Path, words: Sequence[str], explain: Callable[[Exception], PortwrightError] = blame
) -> Mapping[str, Any]:
    """The arguments that a script passes to run(), or its `estimator` and the `input_fn` of its call to train or compile.

    `explain` turns an exception of the script into the error to show.
    """
    sys.path.insert(0, str(script.parent))
    with ExitStack() as stack:
        stack.enter_context(patched(sys, "argv", [str(script), *words]))
        stack.enter_context(patched(entry, "run", _intercept_run))
        stack.enter_context(patched(portwright.tensorflow, "run", _intercept_run))
        for kind, name in (
            (Estimator, "train"),
            (CerebrasEstimator, "train"),
            (CerebrasEstimator, "compile"),
        ):
            stack.enter_context(patched(kind, name, _intercept_estimator))
        try:
            runpy.run_path(str(script), run_name="__main__")
        except _Intercepted as intercepted:
            return intercepted.parts
        except SystemExit as stop:
            raise UserError(
                f"{script} ended with {stop.code!r} before it trained.",
                "Let it call run(model_fn, train_input_fn, ...), or Estimator.train.",
            ) from stop
        except PortwrightError:
            raise
        except Exception as error:
            raise explain(error) from error
    raise UserError(
        f"{script} neither calls portwright.tensorflow.run() nor trains an Estimator.",
        "Let it do one of them; portwright new NAME --framework tensorflow shows how.",
    )
