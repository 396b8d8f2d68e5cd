"""run(): the one entry of a user's run.py, for TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from portwright.errors import PortwrightError
from portwright.job.arguments import CommandStyle, parse_arguments
from portwright.job.blame import refusing_exits
from portwright.job.command import run_and_report
from portwright.job.logs import Console
from portwright.job.outcome import Outcome
from portwright.job.signals import StopSignals
from portwright.target import Target
from portwright.tensorflow import prepare

EPILOG = """examples:
  python run.py CPU --mode train --params configs/params.yaml
  python run.py CPU --mode train --params configs/params.yaml --validate_only
  python run.py CSX --mode train --params configs/params.yaml --compile_only
  python run.py GPU --mode train_and_eval --params configs/params.yaml -D optimizer.learning_rate=0.01
  python run.py CPU --mode eval --params configs/params.yaml --checkpoint_path model_dir/model.ckpt-1000

The same model_dir continues where it stopped. Exit status: 0 good, 1 unsupported, 2 bad input,
3 non-finite loss, 85 saved and wants to be requeued, 130 interrupted."""


def run(
    model_fn: Callable[..., Any],
    train_input_fn: Callable[..., Any] | None = None,
    eval_input_fn: Callable[..., Any] | None = None,
    default_params_fn: Callable[[dict[str, Any]], Any] | None = None,
    extra_args_parser_fn: Callable[..., Any] | None = None,
    *,
    predict_input_fn: Callable[..., Any] | None = None,
    argv: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Does what the command line asks of a model function, and returns the outcome; on failure ends the process.

    `model_fn(features, labels, mode, params)` returns an EstimatorSpec. An input function returns a tf.data.Dataset of
    (features, labels); it takes params, and may take mode and input_context. One that takes mode is used for every mode
    without a function of its own.
    """
    argv = sys.argv[1:] if argv is None else argv

    def work(console: Console, signals: StopSignals) -> Outcome:
        arguments = parse_arguments(argv, extra_args_parser_fn, STYLE)
        for line in arguments.notes:
            console.note(line)
        prepare()
        from portwright.tensorflow.run_modes import execute
        from portwright.tensorflow.run_parts import Parts

        parts = Parts(
            model_fn, train_input_fn, eval_input_fn, default_params_fn, extra_args_parser_fn, predict_input_fn
        )
        parts.check()
        with refusing_exits(lambda: f"the run of mode {arguments.mode}"):
            return execute(arguments, parts, console, signals)

    return run_and_report(argv, work, _explain)


def _explain(error: Exception) -> PortwrightError:
    from portwright.tensorflow.failures import explain

    return explain(error)


def _why_not(target: Target) -> str | None:
    """Why TensorFlow cannot train on a target here, or None; torch is not loaded for it."""
    from portwright.tensorflow.devices import why_not

    prepare()
    return why_not(target)


STYLE = CommandStyle(EPILOG, _why_not, has_torch_processes=False)
