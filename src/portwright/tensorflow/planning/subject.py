"""What `portwright plan` plans of TensorFlow: a folder's run.py, an old Estimator script, or a model function in a file."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from portwright.errors import PortwrightError, UserError, suggest
from portwright.graph.plans.data import Data
from portwright.graph.plans.described import parse_batch
from portwright.graph.plans.request import Request, find_script
from portwright.job.blame import blame
from portwright.tensorflow.capturing.build import GetBatch, MakeSpec, of_estimator, of_functions
from portwright.tensorflow.capturing.capture import capture_step
from portwright.tensorflow.planning.plan import TensorFlowSubject
from portwright.tensorflow.script import ask_script, take_parts, words_of

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


def _from_script(request: Request, script: Path) -> TensorFlowSubject:
    words = words_of(script, request.params, request.overrides)
    with tempfile.TemporaryDirectory() as folder:
        # An old script has a command line of its own: no target, and a folder of ours for what it writes before it trains.
        is_old = request.compat is not None
        if is_old and request.overrides:
            raise UserError(
                "-D was given for a script with a command line of its own.", "Change its params file."
            )
        given = ["-m", "train", *words[3:], "--model_dir", folder] if is_old else words
        asked = ask_script(script, given, request.compat)
    if "estimator" in asked:
        estimator = asked["estimator"]
        values = estimator.params if isinstance(estimator.params, Mapping) else None
        return _subject(request, of_estimator(estimator, asked["input_fn"]), script.parent, values)
    found = take_parts(script, words, asked)
    values = found.params.values
    input_fn = None if request.inputs else found.parts.input_fn("train", values)
    return _subject(
        request, of_functions(found.parts.model_fn, input_fn, values, None), script.parent, values
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
