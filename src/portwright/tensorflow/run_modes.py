"""The modes of a run with TensorFlow: train, eval, train_and_eval, eval_all, predict, and the dry ones."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from portwright.errors import UserError
from portwright.job.arguments import Arguments
from portwright.job.command import process_number
from portwright.job.logs import Console
from portwright.job.outcome import Outcome
from portwright.job.params import Params, save_params
from portwright.job.predictions import write_predictions
from portwright.job.run_params import find_model_dir, load_run_params
from portwright.job.rundir import RunDir
from portwright.job.signals import StopSignals
from portwright.tensorflow.checkpoints import find_damage, step_of
from portwright.tensorflow.cluster import TaskType
from portwright.tensorflow.devices import take_device
from portwright.tensorflow.run_checkpoints import (
    find_for_reading,
    list_checkpoints,
    prepare_start,
    take_weights,
)
from portwright.tensorflow.run_launch import take_place_from_launch
from portwright.tensorflow.run_logging import quiet_tensorflow
from portwright.tensorflow.run_parts import Parts
from portwright.tensorflow.run_processes import FollowerConsole, find_place, join
from portwright.tensorflow.run_settings import check_settings, with_tensorflow_names
from portwright.tensorflow.run_stream import serve, streaming, take_role
from portwright.tensorflow.run_trainer import Trainer

TRAINING = ("train", "train_and_eval")


def execute(arguments: Arguments, parts: Parts, console: Console, signals: StopSignals) -> Outcome:
    """Does what a command line asks."""
    params = load_run_params(arguments, with_tensorflow_names(parts.default_params_fn))
    own = ("save_summary_steps",)  # among the keys of a cluster, and yet TensorFlow's
    unused = [key for key in params.runconfig.cluster_keys() if key not in own]
    if unused and not arguments.target.has_cluster:
        console.note(f"runconfig.{', runconfig.'.join(unused)}: no effect on {arguments.target.name}.")
    check_settings(params)
    model_dir = find_model_dir(arguments, params)
    outcome = Outcome(arguments.mode, arguments.target.name, str(model_dir))
    with quiet_tensorflow(console):
        trains = arguments.mode in TRAINING
        is_dry = arguments.validate_only or arguments.compile_only
        role = take_role(trains and not is_dry) if arguments.stream_data else None
        if is_dry:
            if process_number() > 0:
                outcome.is_shown = False  # one task is enough for it
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
