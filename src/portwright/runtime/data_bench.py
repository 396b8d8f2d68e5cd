"""Whether this machine reads the data of a model folder as quickly as its training step takes them."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from portwright.data.bench import BenchReport, bench_dataset, measure_loader, open_records
from portwright.discover import find_all_models
from portwright.errors import UnsupportedError, UserError, suggest
from portwright.job.arguments import Arguments
from portwright.job.framework import TENSORFLOW, framework_of
from portwright.runtime.asked_script import loaded_script
from portwright.target import JobSpec, Stretch

_WARM_STEPS = 3
_DEFAULT_BATCH_SIZE = 256


def bench(
    path: str,
    *,
    target: str | None,
    params: Path | None,
    overrides: Sequence[str],
    batch_size: int | None,
    num_workers: int | None,
    seconds: float,
    note: Callable[[str], None],
) -> BenchReport:
    """Measures a store, files, or a model folder with its training step."""
    for name, value, least in (("--batch-size", batch_size, 1), ("--workers", num_workers, 0)):
        if value is not None and value < least:
            raise UserError(f"{name} is {value}.", f"Give a number from {least} on.")
    if not seconds > 0:
        raise UserError(f"--seconds is {seconds}.", "Give a number above zero.")
    script = _find_script(path)
    if script is None:
        return _bench_records(path, batch_size, num_workers, seconds)
    if framework_of(script) == TENSORFLOW:
        raise UserError(f"{path} is a TensorFlow model.", f"Use `portwright input {path} --measure`.")
    given = list(overrides)
    given += [] if batch_size is None else [f"train_input.batch_size={batch_size}"]
    given += [] if num_workers is None else [f"train_input.num_workers={num_workers}"]
    with loaded_script(script, params, given, target=target) as (parts, arguments, found):
        if parts.train_data_fn is None:
            raise UserError(
                f"{script} gives run() no train_data_fn.", "There are no training data to measure."
            )
        reason = arguments.target.why_not()
        if reason is not None:
            raise UnsupportedError(f"the target {arguments.target.name} cannot run here:", reason)
        made = parts.train_data_fn(copy.deepcopy(found.values))
        rate, kept = measure_loader(made, name="train_input", seed=found.runconfig.seed or 0, seconds=seconds)
        job = JobSpec(found, parts.model_fn, lambda _: kept, None, "train")
        return BenchReport(path, rate, _measure_step(arguments, job, seconds, note))


def _find_script(path: str) -> Path | None:
    given, models = Path(path), find_all_models()
    if given.is_file() and given.suffix == ".py":
        return given.resolve()
    if (given / "run.py").is_file():
        return (given / "run.py").resolve()
    if given.exists():
        return None
    if path in models:
        return models[path] / "run.py"
    raise UserError(f"there is no '{path}', and it is no reference model.", suggest(path, models))


def _bench_records(path: str, batch_size: int | None, num_workers: int | None, seconds: float) -> BenchReport:
    dataset = open_records(Path(path))
    if dataset is None:
        raise UserError(
            f"'{path}' holds neither a store, files of records nor a run.py.",
            "Name a folder that `portwright data prepare` or `pack` has made, or a model folder.",
        )
    return bench_dataset(
        dataset,
        path,
        batch_size=_DEFAULT_BATCH_SIZE if batch_size is None else batch_size,
        num_workers=num_workers or 0,
        seconds=seconds,
    )


def _measure_step(
    arguments: Arguments, job: JobSpec, seconds: float, note: Callable[[str], None]
) -> dict[str, Any]:
    """Trains on batches in memory, so that the step waits for no data; nothing is saved."""
    backend = arguments.target.make_backend(arguments.flags, note)
    session = None
    try:
        session = backend.open(job)
        quantum = session.steps_per_call
        warm = -(-_WARM_STEPS // quantum) * quantum
        for _ in session.train(Stretch(0, warm, 0, 0, lambda: False)):
            pass
        before = session.counters()["data"]["samples"]
        start = time.perf_counter()
        done = warm
        for event in session.train(
            Stretch(warm, warm + 1_000_000 * quantum, 0, 0, lambda: time.perf_counter() - start >= seconds)
        ):
            done = event.step
        passed = time.perf_counter() - start
        samples = session.counters()["data"]["samples"] - before
    finally:
        if session is not None:
            session.close()
        backend.close()
    return {
        "samples_per_second": samples / passed,
        "seconds_a_step": passed / max(1, done - warm),
        "steps": done - warm,
        "target": arguments.target.name,
    }
