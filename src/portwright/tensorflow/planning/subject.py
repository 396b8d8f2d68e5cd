"""What `portwright plan` plans of TensorFlow: a folder's run.py, an old Estimator script, or a model function in a file."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from portwright.errors import PortwrightError, UserError, suggest
from portwright.graph.plans.data import Data
from portwright.graph.plans.described import parse_batch
from portwright.graph.plans.request import Request, find_script
from portwright.job.arguments import parse_arguments
from portwright.job.blame import blame
from portwright.job.run_params import load_run_params
from portwright.tensorflow.capturing.build import GetBatch, MakeSpec, of_estimator, of_functions
from portwright.tensorflow.capturing.capture import capture_step
from portwright.tensorflow.planning.plan import TensorFlowSubject

_PATH_KEYS = ("_dir", "_path", "_file", "_dirs", "_paths", "_files")


def load_step(request: Request) -> TensorFlowSubject:
    """Runs the user's files as far as they describe the step, never further: nothing is trained."""
    if request.batch_size is not None and request.batch_size < 1:
        raise UserError(f"--batch-size is {request.batch_size}.", "Give a number from 1 on.")
    if request.optimizer is not None:
        raise UserError(
            f"--optimizer {request.optimizer} was given, and the model function makes its own.",
            "Change its params: -D optimizer.optimizer_type=...",
        )
    script = find_script(request.path)
    return _from_callable(request) if script is None else _from_script(request, script)


def _subject(
    request: Request, parts: tuple[GetBatch, MakeSpec], root: Path, values: Mapping[str, Any] | None
) -> TensorFlowSubject:
    described = parse_batch(request.inputs) if request.inputs else None

    def capture() -> Any:
        try:
            return capture_step(*parts, batch_size=request.batch_size, described=described, root=root)
        except PortwrightError:
            raise
        except Exception as error:
            raise blame(error) from error

    why = "the batch was given with --input" if request.inputs else "the input function does not say"
    section = (values or {}).get("train_input")
    return TensorFlowSubject(request.path, capture, Data(why_no_samples=why, paths=_data_paths(section)))


def _data_paths(section: Any) -> tuple[Path, ...]:
    found = []
    for key, value in section.items() if isinstance(section, Mapping) else ():
        for path in value if isinstance(value, list) else [value]:
            is_path = str(key).endswith(_PATH_KEYS) and isinstance(path, str) and path
            if is_path and Path(path).expanduser().exists():
                found.append(Path(path).expanduser())
    return tuple(found)


# -- a script ------------------------------------------------------------------------------------------------


class _Asked(BaseException):
    """Carries what a script passes to run() or to an Estimator out of it; not an Exception, so that no script catches it."""

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
    argv: Any = None,
) -> None:
    del argv
    raise _Asked(
        {
            "model_fn": model_fn,
            "train_input_fn": train_input_fn,
            "eval_input_fn": eval_input_fn,
            "default_params_fn": default_params_fn,
            "extra_args_parser_fn": extra_args_parser_fn,
            "predict_input_fn": predict_input_fn,
        }
    )


def _intercept_estimator(self: Any, input_fn: Any, *args: Any, **kwargs: Any) -> None:
    raise _Asked({"estimator": self, "input_fn": input_fn})


def _from_script(request: Request, script: Path) -> TensorFlowSubject:
    params_path = request.params or script.parent / "configs" / "params.yaml"
    if not params_path.is_file():
        raise UserError(f"there is no params file '{params_path}'.", "Give one with --params.")
    overrides = [word for text in request.overrides for word in ("-D", text)]
    arguments = ["CPU", "--mode", "train", "--params", str(params_path.resolve()), *overrides]
    with tempfile.TemporaryDirectory() as folder:
        # An old script has a command line of its own: no target, and a folder of ours for what it writes before it trains.
        is_old = request.compat is not None
        if is_old and request.overrides:
            raise UserError(
                "-D was given for a script with a command line of its own.", "Change its params file."
            )
        given = ["-m", "train", *arguments[3:], "--model_dir", folder] if is_old else arguments
        asked = _ask(script, given, request.compat)
    if "estimator" in asked:
        estimator = asked["estimator"]
        values = estimator.params if isinstance(estimator.params, Mapping) else None
        return _subject(request, of_estimator(estimator, asked["input_fn"]), script.parent, values)
    from portwright.tensorflow.entry import STYLE
    from portwright.tensorflow.run_parts import Parts

    parts = Parts(**asked)
    parts.check()
    parsed = parse_arguments(arguments, parts.extra_args_parser_fn, STYLE)
    with mock.patch.object(sys, "argv", [str(script), *arguments]):
        params = load_run_params(parsed, parts.default_params_fn)
    input_fn = None if request.inputs else parts.input_fn("train", params.values)
    made = of_functions(parts.model_fn, input_fn, params.values, None)
    return _subject(request, made, script.parent, params.values)


def _ask(script: Path, arguments: list[str], compat: str | None) -> Mapping[str, Any]:
    """Runs the script up to its call of run(), or to where an Estimator would train, and gives what is passed there."""
    import portwright.tensorflow as package

    if compat is not None:
        from portwright.compat.lend import lend

        lend(compat, str(script))
    entry = importlib.import_module("portwright.tensorflow.entry")
    cerebras = importlib.import_module("portwright.tensorflow.cerebras_estimator").CerebrasEstimator
    base = importlib.import_module("portwright.tensorflow.estimator").Estimator
    sys.path.insert(0, str(script.parent))
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", [str(script), *arguments]))
        stack.enter_context(mock.patch.object(entry, "run", _intercept_run))
        stack.enter_context(mock.patch.dict(vars(package), {"run": _intercept_run}))
        for kind, name in ((base, "train"), (cerebras, "train"), (cerebras, "compile")):
            stack.enter_context(mock.patch.object(kind, name, _intercept_estimator))
        try:
            runpy.run_path(str(script), run_name="__main__")
        except _Asked as asked:
            return asked.parts
        except SystemExit as stop:
            raise UserError(
                f"{script} ended with {stop.code!r} before it trained.",
                "Let it call run(model_fn, train_input_fn, ...), or Estimator.train.",
            ) from stop
        except PortwrightError:
            raise
        except Exception as error:
            if compat is not None and isinstance(error, ImportError):
                from portwright.compat.lend import explain_import_error

                raise explain_import_error(script, error) from error
            raise blame(error) from error
    raise UserError(
        f"{script} neither calls portwright.tensorflow.run() nor trains an Estimator.",
        "Call one of them, or plan FILE.py:MODEL_FN with --input instead.",
    )


# -- FILE.py:MODEL_FN ----------------------------------------------------------------------------------------


def _from_callable(request: Request) -> TensorFlowSubject:
    file_name, _, name = request.path.rpartition(":")
    file = Path(file_name)
    if not file.is_file():
        raise UserError(f"there is no file '{file}'.", "Give FILE.py:MODEL_FN.")
    if not request.inputs:
        raise UserError(
            f"'{request.path}' has no input function, so there is no batch.",
            "Describe one: --input 'x:float32[8,784]' --input 'labels:int32[8]'.",
        )
    values = None
    if request.params is not None:
        from portwright.job.params import load_params

        values = load_params(request.params, overrides=request.overrides).values
    elif request.overrides:
        raise UserError("-D was given without --params.", "Say which params file it changes.")
    model_fn = _find_model_fn(file.resolve(), name)
    return _subject(request, of_functions(model_fn, None, values, None), file.resolve().parent, values)


def _find_model_fn(file: Path, name: str) -> Callable[..., Any]:
    sys.path.insert(0, str(file.parent))
    # Under its own name, unless a module that is in use has it.
    module_name = file.stem if file.stem not in sys.modules else f"_planned_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except PortwrightError:
        raise
    except Exception as error:
        raise blame(error) from error
    found = getattr(module, name, None)
    if not callable(found):
        public = [key for key, value in vars(module).items() if not key.startswith("_") and callable(value)]
        raise UserError(f"{file} has no function '{name}'.", suggest(name, public))
    return found  # type: ignore[no-any-return]
