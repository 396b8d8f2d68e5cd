"""The command `portwright input`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from portwright.errors import UserError, suggest
from portwright.job.stdout import stdout_to_stderr
from portwright.tensorflow.input_check.check import IDEAL, InputReport, check_input, make_dataset
from portwright.tensorflow.input_check.measure import measure_pipeline, measure_step
from portwright.tensorflow.input_check.stages import AUTOTUNE, Stage
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.script import Script, read_script

MODES = {"train": ModeKeys.TRAIN, "eval": ModeKeys.EVAL}


def check_and_print(
    path: str,
    params: Path | None,
    overrides: Sequence[str],
    mode: str,
    num_workers: int,
    measure: bool,
    seconds: float,
    as_json: bool,
) -> bool:
    """Prints the report of a pipeline; returns whether it has no error."""
    if mode not in MODES:
        raise UserError(f"unknown mode '{mode}'.", suggest(mode, MODES))
    if num_workers < 1 or seconds <= 0:
        raise UserError(f"--workers is {num_workers} and --seconds {seconds}.", "Give numbers above zero.")
    with stdout_to_stderr():
        script = read_script(path, params, overrides)
        report = look_at_script(script, mode, num_workers)
        if measure:
            report = replace(report, measured=_measure(script, mode, seconds))
    print(json.dumps(report.as_dict(), indent=2) if as_json else "\n".join(_lines(report)))
    return not report.has_errors


def look_at_script(script: Script, mode: str, num_workers: int = 1) -> InputReport:
    """Reports on the pipeline of a mode; with several workers, on that of the first one."""
    function = script.parts.input_fn(MODES[mode], script.params.values)
    return check_input(
        _as_worker(function, num_workers),
        name=function.name,
        is_training=mode == "train",
        num_workers=num_workers,
        root=script.path.parent,
    )


def _as_worker(function: Callable[..., Any], num_workers: int) -> Callable[[], Any]:
    if num_workers == 1:
        return function
    import tensorflow as tf

    context = tf.distribute.InputContext(
        num_input_pipelines=num_workers, input_pipeline_id=0, num_replicas_in_sync=num_workers
    )
    return lambda: function(context)


def _measure(script: Script, mode: str, seconds: float) -> dict[str, Any]:
    function = script.parts.input_fn(MODES[mode], script.params.values)

    def dataset() -> Any:
        return make_dataset(function, function.name)

    measured: dict[str, Any] = {"pipeline": measure_pipeline(dataset, seconds)}
    if mode == "train":
        measured["step_here"] = measure_step(dataset, lambda batch: _train_op(script, batch), seconds)
    return measured


def _train_op(script: Script, batch: Any) -> Any:
    from portwright.tensorflow.arguments import call_with

    features, labels = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (batch, None)
    given = {
        "features": features, "labels": labels, "mode": ModeKeys.TRAIN, "params": script.params.values, "config": None
    }  # fmt: skip
    spec = call_with(script.parts.model_fn, given)
    if getattr(spec, "train_op", None) is None:
        raise UserError("model_fn returned no train_op in mode train.", "Give one to the EstimatorSpec.")
    return spec.train_op


def _lines(report: InputReport) -> Iterator[str]:
    yield f"{report.name}: {' -> '.join(_shown(stage) for stage in report.stages)}"
    yield from (f"  {line}" for line in report.elements)
    for finding in report.findings:
        where = f"{finding.place}: " if finding.place is not None else ""
        yield f"{where}{finding.severity}: {finding.message} {finding.cure} [{finding.name}]"
    if not report.findings:
        yield "nothing to find fault with."
    elif any(f.severity != "advice" for f in report.findings):
        yield f"the order that serves most: {IDEAL}."
    yield from _speed(report)


def _speed(report: InputReport) -> Iterator[str]:
    pipeline = report.measured.get("pipeline")
    if not pipeline:
        return
    rate = pipeline["samples_per_second"]
    if rate is None:
        yield "measured: the data hold one batch, too few to time."
        return
    ended = ", to the end of the data" if pipeline["ended"] else ""
    yield (
        f"measured here: {rate:,.0f} samples/s over {pipeline['batches']} batches{ended}; "
        f"the first batch took {pipeline['first_batch_seconds']:.2f} s."
    )
    step = report.measured.get("step_here")
    if step:
        needed = step["samples_per_second"]
        share = rate / needed
        yield f"a training step on this machine takes {needed:,.0f} samples/s: the pipeline gives {share:.1f} times that."
        if share < 1:
            yield "  the step will wait for data: mend the findings above, add workers, or store the data prepared."


def _shown(stage: Stage) -> str:
    for name in ("batch_size", "buffer_size", "num_shards", "cycle_length"):
        value = stage.number(name)
        if value is not None:
            return f"{stage.kind}({'auto' if value == AUTOTUNE else value})"
    return stage.kind
