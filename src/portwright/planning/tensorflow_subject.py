"""What `portwright plan` plans of TensorFlow: a folder's run.py, an old Estimator script, or a model function in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portwright.errors import PortwrightError, UserError
from portwright.graph.inputs import parse_batch
from portwright.graph.plans.request import Data, Request, data_paths, find_script
from portwright.job.blame import blame
from portwright.planning.user_file import check_batch_size, find_callable, plain_params
from portwright.tensorflow.capturing.build import GetBatch, MakeSpec, of_estimator, of_functions
from portwright.tensorflow.capturing.capture import capture_step
from portwright.tensorflow.planning.plan import TensorFlowSubject
from portwright.tensorflow.script import ask_script, take_parts, words_of


def load_step(request: Request) -> TensorFlowSubject:
    """Runs the user's files only as far as they describe the step; nothing is trained."""
    check_batch_size(request)
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
    return TensorFlowSubject(request.path, capture, Data(why_no_samples=why, paths=data_paths(section)))


# -- a script ------------------------------------------------------------------------------------------------


def _from_script(request: Request, script: Path) -> TensorFlowSubject:
    words = words_of(script, request.params, request.overrides)
    with tempfile.TemporaryDirectory() as folder:
        # An old script gets no target on its command line, and a temporary folder for what it writes before it trains.
        is_old = request.compat is not None
        if is_old and request.overrides:
            raise UserError(
                "-D was given for a script with a command line of its own.", "Change its params file."
            )
        given = ["-m", "train", *words[3:], "--model_dir", folder] if is_old else words
        asked = _ask(script, given, request.compat)
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


def _ask(script: Path, words: Sequence[str], compat: str | None) -> Mapping[str, Any]:
    """What the script passes to run() or trains; with `compat`, it can use old names."""
    if compat is None:
        return ask_script(script, words)
    from portwright.compat.lend import explain_error, lend

    lend(compat, str(script))
    return ask_script(script, words, explain_error(script))


# -- FILE.py:MODEL_FN ----------------------------------------------------------------------------------------


def _from_callable(request: Request) -> TensorFlowSubject:
    model_fn, folder = find_callable(request, "MODEL_FN", "a model function")
    if not request.inputs:
        raise UserError(
            f"'{request.path}' has no input function, so there is no batch.",
            "Describe one: --input 'x:float32[8,784]' --input 'labels:int32[8]'.",
        )
    values = plain_params(request)
    return _subject(request, of_functions(model_fn, None, values, None), folder, values)
