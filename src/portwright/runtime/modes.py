"""The modes of a run: train, eval, train_and_eval, eval_all, predict, and the dry ones, validate and compile."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from portwright.errors import UserError
from portwright.job.arguments import Arguments
from portwright.job.logs import Console
from portwright.job.outcome import Outcome
from portwright.job.params import save_params
from portwright.job.predictions import write_predictions
from portwright.job.rundir import RunDir
from portwright.job.signals import StopSignals
from portwright.runtime.checkpoint import (
    LoadedCheckpoint,
    find_last_good,
    list_checkpoints,
    read_checkpoint,
)
from portwright.runtime.trainer import Trainer
from portwright.target import JobSpec, Session, World


def run_mode(
    arguments: Arguments,
    job: JobSpec,
    session: Session,
    world: World,
    model_dir: Path,
    console: Console,
    signals: StopSignals,
    emulates: str | None = None,
) -> Outcome:
    outcome = Outcome(
        arguments.mode, arguments.target.name, str(model_dir), is_shown=world.is_main, emulated=emulates
    )
    trainer = Trainer(session, job.params.runconfig, model_dir, world, signals, console, outcome, job.stream)
    if arguments.validate_only or arguments.compile_only:
        from portwright.runtime.dry_run import compile_step, validate

        if arguments.mode in ("train", "train_and_eval"):
            trainer.last_step()  # raises where the params do not say how long to train
        check = validate if arguments.validate_only else compile_step
        check(arguments, job, session, console, outcome)
        outcome.say_emulated()
        return outcome
    trains = arguments.mode in ("train", "train_and_eval")
    if trains:
        with ExitStack() as stack:

            def take_folder() -> None:
                if world.is_main:
                    stack.enter_context(RunDir(model_dir, on_note=console.note).lock())

            world.agree_on_failure(take_folder)
            _train(arguments, job, trainer, world, model_dir, console)
    elif arguments.mode == "eval":
        loaded = _load_for_reading(arguments, job.params.runconfig.checkpoint_path, model_dir, console)
        trainer.take_weights(loaded)
        outcome.checkpoint = str(loaded.path)
        trainer.evaluate()
    elif arguments.mode == "eval_all":
        if arguments.checkpoint_path is not None:
            raise UserError(
                "eval_all evaluates every checkpoint of model_dir.",
                "Leave --checkpoint_path out, or use --mode eval.",
            )
        outcome.more["evaluations"] = _evaluate_all(trainer, model_dir, console)
        for row in outcome.more["evaluations"]:
            shown = "  ".join(f"{name} {value:.4f}" for name, value in row.items() if name != "step")
            outcome.lines.append(f"checkpoint_{row['step']}: {shown}")
    else:
        loaded = _load_for_reading(arguments, job.params.runconfig.checkpoint_path, model_dir, console)
        trainer.take_weights(loaded)
        outcome.more["predictions"] = _predict(session, job, model_dir, loaded.step)
        outcome.lines.append(
            f"predictions: {len(outcome.more['predictions'])} file(s) in {Path(outcome.more['predictions'][0]).parent}"
        )
    if signals.requested and not trains:
        outcome.status = signals.exit_status
        console.note(f"stopped by {signals.reason} before the end.")
    elif world.is_main and arguments.mode != "eval_all":
        outcome.say_where(trains)
    return outcome


def _train(
    arguments: Arguments, job: JobSpec, trainer: Trainer, world: World, model_dir: Path, console: Console
) -> None:
    loaded, weights_only = _start_from(arguments, job, model_dir, console)
    if loaded is not None:
        world.agree_on_failure(lambda: trainer.resume(loaded, weights_only=weights_only))
        if weights_only:
            console.info(f"weights taken from {loaded.path}; starting at step 0")
        else:
            console.info(f"resuming from {loaded.path} at step {loaded.step}")
    if world.is_main:
        save_params(job.params, RunDir(model_dir).params_file("train"))
    trainer.train(evaluates=arguments.mode == "train_and_eval")


def _start_from(
    arguments: Arguments, job: JobSpec, model_dir: Path, console: Console
) -> tuple[LoadedCheckpoint | None, bool]:
    """Which checkpoint a training run starts from, and whether only its weights count."""
    config = job.params.runconfig
    given = arguments.checkpoint_path or config.checkpoint_path
    pretrained = arguments.is_pretrained_checkpoint or config.is_pretrained_checkpoint
    if pretrained and given is None:
        raise UserError("--is_pretrained_checkpoint needs a checkpoint.", "Add --checkpoint_path PATH.")
    found = find_last_good(model_dir, console.warning) if config.autoload_last_checkpoint else None
    # With a checkpoint from another folder, the run goes on from the newest one in model_dir, if any. One of model_dir's
    # own takes the run back.
    goes_back = given is not None and Path(given).resolve().parent == model_dir.resolve()
    if given is not None and (found is None or (goes_back and not pretrained)):
        if found is not None:
            console.note(f"starting from {given}, though {model_dir} has checkpoint_{found.step}.")
        return read_checkpoint(Path(given)), pretrained
    if found is None:
        return None, False
    if given is not None:
        console.note(
            f"{model_dir} has checkpoint_{found.step} of this run already, so it continues instead of starting from {given}."
        )
    return read_checkpoint(found.path), False


def _load_for_reading(
    arguments: Arguments, checkpoint_path: str | None, model_dir: Path, console: Console
) -> LoadedCheckpoint:
    given = arguments.checkpoint_path or checkpoint_path
    if given is not None:
        return read_checkpoint(Path(given), weights_only=True)
    RunDir(model_dir, read_only=True)  # says what is wrong with the folder, if anything is
    found = find_last_good(model_dir, console.warning)
    if found is None:
        raise UserError(
            f"mode {arguments.mode} needs a checkpoint, and {model_dir} has no good one.",
            "Train first, or give --checkpoint_path or --model_dir.",
        )
    return read_checkpoint(found.path, weights_only=True)


def _evaluate_all(trainer: Trainer, model_dir: Path, console: Console) -> list[dict[str, Any]]:
    RunDir(model_dir, read_only=True)
    results = []
    for info in list_checkpoints(model_dir):
        if trainer.is_stopped:
            break
        try:
            loaded = read_checkpoint(info.path, weights_only=True)
        except UserError as error:
            console.warning(f"skipping {info.path}: {error.message}")
            continue
        trainer.take_weights(loaded)
        if values := trainer.evaluate():
            results.append({"step": loaded.step, **values})
    if not results and not trainer.is_stopped:
        raise UserError(
            f"{model_dir} has no good checkpoint to evaluate.", "Train first, or give --model_dir."
        )
    return results


def _predict(session: Session, job: JobSpec, model_dir: Path, step: int) -> list[str]:
    """Writes .npz files with the arrays that the model's predict gives."""
    batches = (
        {name: _as_numpy(tensor) for name, tensor in outputs.items()}
        for outputs in session.predict(job.params.runconfig.eval_steps)
    )
    return write_predictions(batches, model_dir / "predict" / f"checkpoint_{step}")


def _as_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    import torch

    array: np.ndarray[Any, Any] = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array
