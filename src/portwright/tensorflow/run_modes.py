"""The modes of a run with TensorFlow: train, eval, train_and_eval, eval_all, predict, and the dry ones."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import tensorflow as tf

from portwright.errors import UserError
from portwright.job.arguments import Arguments, script_folder
from portwright.job.command import process_number
from portwright.job.data_paths import telling_missing_paths
from portwright.job.logs import Console
from portwright.job.outcome import Outcome
from portwright.job.params import Params, save_params
from portwright.job.predictions import write_predictions
from portwright.job.reads import check_overrides
from portwright.job.run_params import find_model_dir, load_run_params
from portwright.job.rundir import RunDir
from portwright.job.signals import StopSignals
from portwright.tensorflow.checkpoints import find_damage, step_of
from portwright.tensorflow.cluster import TaskType
from portwright.tensorflow.devices import take_device
from portwright.tensorflow.monitor import Monitor
from portwright.tensorflow.processes import Processes
from portwright.tensorflow.run_checkpoints import (
    find_for_reading,
    list_checkpoints,
    prepare_start,
    take_weights,
)
from portwright.tensorflow.run_config import RunConfig
from portwright.tensorflow.run_launch import take_place_from_launch
from portwright.tensorflow.run_parts import Parts
from portwright.tensorflow.run_settings import check_settings, with_tensorflow_names
from portwright.tensorflow.run_stream import serve, streaming, take_role
from portwright.tensorflow.run_trainer import Trainer
from portwright.tensorflow.training import join_processes


class FollowerConsole(Console):
    """Prints the notes, warnings and errors of a process that is not the chief, with its name, and nothing else."""

    def __init__(self, given: Console, name: str) -> None:
        super().__init__(prefix=f"{name}: ")
        self._least = given._least

    @property
    def shows_info(self) -> bool:
        return False

    def info(self, message: str) -> None:
        pass


def find_place(arguments: Arguments, trains: bool) -> RunConfig:
    """The task of this process by TF_CONFIG."""
    place = RunConfig()
    if trains and place.task_type == TaskType.EVALUATOR:
        raise UserError(
            f"TF_CONFIG makes this process an evaluator, and --mode {arguments.mode} has the chief evaluate.",
            "Leave the evaluator out; or start it with --mode eval, without TF_CONFIG, when there is a checkpoint.",
        )
    return place


def join(params: Params, console: Console, signals: StopSignals) -> Processes | None:
    """Waits for the processes that train together, and returns them; None for a single process."""
    return join_processes(RunConfig(tf_random_seed=params.runconfig.seed), Monitor(console, signals))


# Warnings that TensorFlow's code means for its authors, or that are about what run() does on purpose.
_NOT_FOR_USERS = re.compile(r"deprecat|will be removed|Instructions for updating|retracing", re.I)


class _ToConsole(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if _NOT_FOR_USERS.search(message):
            self._console.debug(message)
        else:
            self._console.warning(message)


@contextmanager
def quiet_tensorflow(console: Console) -> Iterator[None]:
    """Prints warnings of TensorFlow's logger on the console, one line each, without those that mean nothing to users."""
    logger = tf.get_logger()
    handlers, propagates = list(logger.handlers), logger.propagate
    ours = _ToConsole(console)
    logger.handlers[:] = [ours]
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            for package in ("tensorflow", "tf_keras", "keras"):
                warnings.filterwarnings("ignore", module=rf"{package}(\.|$)")
            yield
    finally:
        logger.handlers[:] = handlers
        logger.propagate = propagates


TRAINING = ("train", "train_and_eval")


def execute(arguments: Arguments, parts: Parts, console: Console, signals: StopSignals) -> Outcome:
    """Runs the mode of a command line, and returns the outcome."""
    params = load_run_params(arguments, with_tensorflow_names(parts.default_params_fn))
    check_overrides(
        params,
        (parts.model_fn, parts.train_input_fn, parts.eval_input_fn, parts.predict_input_fn),
        script_folder(),
    )
    own = ("save_summary_steps",)  # listed as a key for clusters, but TensorFlow uses it too
    unused = [key for key in params.runconfig.cluster_keys() if key not in own]
    if unused and not arguments.target.has_cluster:
        console.note(f"runconfig.{', runconfig.'.join(unused)}: no effect on {arguments.target.name}.")
    check_settings(params)
    model_dir = find_model_dir(arguments, params)
    outcome = Outcome(arguments.mode, arguments.target.name, str(model_dir))
    telling = telling_missing_paths(params, console.warning, always=arguments.validate_only)
    with quiet_tensorflow(console), telling:
        trains = arguments.mode in TRAINING
        is_dry = arguments.validate_only or arguments.compile_only
        role = take_role(trains and not is_dry) if arguments.stream_data else None
        if is_dry:
            if process_number() > 0:
                outcome.is_shown = False  # the first process alone prints the outcome
                return outcome
            from portwright.tensorflow.run_dry import dry_run

            dry_run(arguments, parts, params, model_dir, console, outcome)
            return outcome
        if role is not None and not role.is_coordinator:
            outcome.is_shown = False
            console = FollowerConsole(console, role.name)
            trainer = Trainer(parts, params, model_dir, console, signals, outcome)
            return serve(role, trainer.make_lanes(), model_dir, console, signals, outcome)
        if role is None:
            take_place_from_launch(console.note)
        place = find_place(arguments, trains)
        if not place.is_chief and place.task_type != TaskType.EVALUATOR:
            outcome.is_shown = False
            name = f"{place.task_type} {place.task_id}"
            console = FollowerConsole(console, name)
            if not trains:
                console.note(f"mode {arguments.mode} is the chief's alone: there is nothing to do here.")
                return outcome
        take_device(arguments.target)
        processes = join(params, console, signals) if trains else None
        trainer = Trainer(parts, params, model_dir, console, signals, outcome, processes)
        with streaming(role, trainer, model_dir, console, outcome) if role else nullcontext():
            _run_mode(arguments, parts, params, model_dir, console, trainer, outcome)
    if signals.requested and arguments.mode not in TRAINING:
        outcome.status = signals.exit_status
        console.note(f"stopped by {signals.reason} before the end.")
    elif arguments.mode != "eval_all":
        outcome.say_where(arguments.mode in TRAINING)
    return outcome


def _run_mode(
    arguments: Arguments,
    parts: Parts,
    params: Params,
    model_dir: Path,
    console: Console,
    trainer: Trainer,
    outcome: Outcome,
) -> None:
    processes = trainer.processes
    if arguments.mode in TRAINING and processes is not None and processes.rank > 0:
        trainer.train(int(processes.hear_chief("")), evaluates=arguments.mode == "train_and_eval")
    elif arguments.mode in TRAINING:
        with RunDir(model_dir, on_note=console.note).lock():
            step, pretrained = prepare_start(arguments, params, model_dir, console)

            def after_build() -> None:
                if pretrained is not None:
                    take_weights(pretrained, console.warning)
                save_params(params, RunDir(model_dir).params_file("train"))

            trainer.model.after_build = after_build
            if processes is not None:
                processes.hear_chief(str(step))
            trainer.train(step, evaluates=arguments.mode == "train_and_eval")
    elif arguments.mode == "eval":
        checkpoint = find_for_reading(arguments, params, model_dir, console)
        outcome.checkpoint = checkpoint
        trainer.evaluate(checkpoint)
    elif arguments.mode == "eval_all":
        if arguments.checkpoint_path is not None:
            raise UserError(
                "eval_all evaluates every checkpoint of model_dir.",
                "Leave --checkpoint_path out, or use --mode eval.",
            )
        outcome.more["evaluations"] = _evaluate_all(trainer, model_dir, console)
        for row in outcome.more["evaluations"]:
            shown = "  ".join(f"{name} {value:.4f}" for name, value in row.items() if name != "step")
            outcome.lines.append(f"model.ckpt-{row['step']}: {shown}")
    else:
        checkpoint = find_for_reading(arguments, params, model_dir, console)
        outcome.checkpoint, outcome.step = checkpoint, step_of(checkpoint)
        batches = islice(trainer.predict(checkpoint), params.runconfig.eval_steps)
        folder = model_dir / "predict" / f"checkpoint_{outcome.step}"
        outcome.more["predictions"] = write_predictions(batches, folder)
        outcome.lines.append(f"predictions: {len(outcome.more['predictions'])} file(s) in {folder}")


def _evaluate_all(trainer: Trainer, model_dir: Path, console: Console) -> list[dict[str, Any]]:
    RunDir(model_dir, read_only=True)
    results = []
    for checkpoint in list_checkpoints(model_dir):
        if trainer.is_stopped:
            break
        damage = find_damage(checkpoint)
        if damage is not None:
            console.warning(f"skipping {checkpoint}: {damage}.")
            continue
        if values := trainer.evaluate(checkpoint):
            results.append({"step": step_of(checkpoint), **values})
    if not results and not trainer.is_stopped:
        raise UserError(
            f"{model_dir} has no good checkpoint to evaluate.", "Train first, or give --model_dir."
        )
    return results
