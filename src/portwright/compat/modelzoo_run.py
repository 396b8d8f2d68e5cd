"""`run_utils` of the model zoo: run() with the params that release 1.6 added for a model's code, and 2.2's main()."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from portwright.job.arguments import Arguments, parse_arguments
from portwright.job.logs import Console
from portwright.job.run_params import load_run_params
from portwright.runtime.run import run as run_portwright

# In release 1.6 mixed precision was for GPUs; on other devices it printed a note and computed in float32.
_WITHOUT_MIXED_PRECISION = ("CPU",)


def run(
    model_fn: Callable[..., Any],
    train_data_fn: Callable[[Any], Any] | None = None,
    eval_data_fn: Callable[[Any], Any] | None = None,
    default_params_fn: Callable[[dict[str, Any]], Any] | None = None,
    extra_args_parser_fn: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Does what the command line asks of a model that was written for release 1.6."""
    return run_portwright(
        model_fn,
        train_data_fn,
        eval_data_fn,
        with_release_defaults(
            default_params_fn,
            lambda: parse_arguments(sys.argv[1:], extra_args_parser_fn),
            Console().note,
        ),
        extra_args_parser_fn,
    )


def get_params_from_args(
    run_dir: str | None = None, extra_args_parser_fn: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """The params that the command line names, for `main`; `run_dir` has no effect."""
    return load_run_params(parse_arguments(sys.argv[1:], extra_args_parser_fn), None).values


def main(
    params: dict[str, Any],
    model_fn: Callable[..., Any],
    train_data_fn: Callable[[Any], Any] | None = None,
    eval_data_fn: Callable[[Any], Any] | None = None,
    script: str | None = None,
    extra_args_parser_fn: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """run() on params that were read before; `script` has no effect."""
    return run_portwright(model_fn, train_data_fn, eval_data_fn, lambda _: params, extra_args_parser_fn)


def with_release_defaults(
    default_params_fn: Callable[[dict[str, Any]], Any] | None,
    read_arguments: Callable[[], Arguments],
    note: Callable[[str], None],
) -> Callable[[dict[str, Any]], Any]:
    """A function of defaults that first completes params as release 1.6 did, and then calls the model's own function.

    It adds the command line to runconfig, turns AdamW's bias correction off unless it is set, and makes a model with
    mixed precision compute in float32 on the devices where 1.6 did.
    """

    @functools.wraps(default_params_fn or run)
    def complete(params: dict[str, Any]) -> Any:
        arguments = read_arguments()
        _add_arguments(params.setdefault("runconfig", {}), arguments)
        optimizer = params.get("optimizer")
        if isinstance(optimizer, dict) and str(optimizer.get("optimizer_type")).lower() == "adamw":
            optimizer.setdefault("correct_bias", False)
        returned = default_params_fn(params) if default_params_fn is not None else None
        completed = params if returned is None else returned
        if isinstance(completed, Mapping):
            _choose_precision(completed, arguments, note)
            for name in arguments.extra:  # run() adds the script's own flags after runconfig was checked
                completed["runconfig"].pop(name, None)
        return completed

    return complete


def _add_arguments(runconfig: dict[str, Any], arguments: Arguments) -> None:
    runconfig["mode"] = arguments.mode
    given = arguments.model_dir or runconfig.get("model_dir")
    runconfig["model_dir"] = str(given or Path(sys.argv[0]).resolve().parent / "model_dir")
    for name, value in arguments.extra.items():
        runconfig.setdefault(name, value)


def _choose_precision(params: Mapping[str, Any], arguments: Arguments, note: Callable[[str], None]) -> None:
    model, runconfig = params.get("model"), params.get("runconfig")
    if not isinstance(model, Mapping) or not isinstance(runconfig, dict):
        return
    model.setdefault("mixed_precision", False)  # type: ignore[attr-defined]
    is_open = model["mixed_precision"] is True and runconfig.get("precision") is None
    if is_open and arguments.target.name in _WITHOUT_MIXED_PRECISION:
        runconfig["precision"] = "fp32"
        note(
            f"model.mixed_precision: on a {arguments.target.name} release 1.6 computed in fp32, and so does this run; "
            "-D runconfig.precision=bf16 chooses otherwise."
        )
