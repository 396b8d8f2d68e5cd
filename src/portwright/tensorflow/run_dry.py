"""--validate_only and --compile_only: check a step, and write nothing into model_dir."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from portwright.errors import ExitStatus, UserError
from portwright.job.arguments import Arguments, script_folder
from portwright.job.logs import Console
from portwright.job.outcome import Outcome
from portwright.job.params import Params
from portwright.job.runconfig import find_last_step
from portwright.tensorflow.devices import take_device
from portwright.tensorflow.estimator import Estimator
from portwright.tensorflow.first_batch import FirstBatch
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.monitor import Monitor, watching
from portwright.tensorflow.run_config import RunConfig
from portwright.tensorflow.run_model import WatchedModel, describe_shape, name_tensors
from portwright.tensorflow.run_parts import InputFn, Parts

_PHASES = {
    "train": (ModeKeys.TRAIN,),
    "train_and_eval": (ModeKeys.TRAIN, ModeKeys.EVAL),
    "predict": (ModeKeys.PREDICT,),
}


def dry_run(
    arguments: Arguments, parts: Parts, params: Params, model_dir: Path, console: Console, outcome: Outcome
) -> None:
    """Checks what a run would do; on a target that TensorFlow does not train on, the step is planned instead of run."""
    phases = _PHASES.get(arguments.mode, (ModeKeys.EVAL,))
    if ModeKeys.TRAIN in phases:
        # Raises an error if the config gives no length of training.
        find_last_step(params.runconfig, 0, lambda num_epochs: None)
    if arguments.compile_only or arguments.target.tensorflow_device is None:
        _compile(arguments, parts, params, model_dir, phases, outcome)
        return
    take_device(arguments.target)
    described: dict[str, Any] = {"batches": {}}
    with tempfile.TemporaryDirectory() as folder:
        for mode in phases:
            _Trial(parts, params, mode, folder, console).run(described)
    for name, batch in described["batches"].items():
        shown = (f"{path} {dtype}{shape}" for path, (dtype, shape) in batch.items())
        outcome.lines.append(f"{name}: {', '.join(shown)}")
    outcome.lines.append(f"weights: {described['parameters']:,}")
    if "train_loss" in described:
        outcome.lines.append(f"one training step: loss {described['train_loss']:.6g}")
    outcome.lines.append(f"valid on {arguments.target.name}; no weights were written")
    outcome.more["validated"] = described


class _Trial:
    """Runs one step of one mode, with fresh weights and in a temporary folder."""

    def __init__(self, parts: Parts, params: Params, mode: str, folder: str, console: Console) -> None:
        self._mode, self._console, self._seed = mode, console, params.runconfig.seed
        self._model = WatchedModel(parts.model_fn)
        self._first = FirstBatch(self._model, console.warning)
        self._input: InputFn = parts.input_fn(mode, params.values)
        config = RunConfig(
            model_dir=folder,
            tf_random_seed=params.runconfig.seed,
            save_summary_steps=None,
            save_checkpoints_steps=None,
            save_checkpoints_secs=None,
            log_step_count_steps=None,
        )
        self._estimator = Estimator(self._model.model_fn, config=config, params=params.values)

    def run(self, described: dict[str, Any]) -> None:
        losses: list[float] = []
        monitor = Monitor(
            self._console, log_steps=1, on_log=lambda step, values, more: losses.append(values["loss"])
        )
        outputs: dict[str, Any] = {}
        tf.keras.utils.set_random_seed(self._seed)
        with watching(monitor):
            if self._mode == ModeKeys.TRAIN:
                self._estimator.train(self._input, hooks=[self._first], steps=1)
            elif self._mode == ModeKeys.EVAL:
                described["eval"] = {
                    name: float(value)
                    for name, value in self._estimator.evaluate(
                        self._input, steps=1, hooks=[self._first]
                    ).items()
                    if np.ndim(value) == 0 and not isinstance(value, (bytes, str)) and name != "global_step"
                }
            else:
                outputs = self._predict()
                described["predict"] = {name: list(np.shape(value)) for name, value in outputs.items()}
        if not self._first.is_seen:
            raise UserError(
                f"{self._input.name} gave no batch: there are fewer samples than batch_size, and drop_remainder leaves "
                "them out, or there are none at all.",
                f"Lower {self._input.section}.batch_size, or look at the files that are read.",
            )
        if losses:
            described["train_loss"] = losses[0]
        described["parameters"] = sum(
            math.prod(size or 0 for size in shape) for shape in self._model.weights.values()
        )
        described["batches"][self._input.section] = self._describe()

    def _predict(self) -> dict[str, Any]:
        for batch in self._estimator.predict(self._input, hooks=[self._first], yield_single_examples=False):
            return batch if isinstance(batch, dict) else {"predictions": batch}
        return {}

    def _describe(self) -> dict[str, tuple[str, list[int]]]:
        name = self._input.section
        tensors = {
            **name_tensors(self._model.features, "features"),
            **name_tensors(self._model.labels, "labels"),
        }
        for path, tensor in tensors.items():
            if not hasattr(tensor, "shape"):
                continue
            if not tensor.shape.is_fully_defined():
                self._console.warning(
                    f"{name}: {path} has the shape {describe_shape(tensor.shape)}; accelerators want one that is known, "
                    "so batch with drop_remainder=True."
                )
            if tensor.dtype.name == "float64":
                self._console.warning(
                    f"{name}: {path} is float64, which most accelerators refuse; convert it to float32 in data.py."
                )
        return {path: (tensors[path].dtype.name, list(a.shape)) for path, a in self._first.arrays.items()}


def _compile(
    arguments: Arguments,
    parts: Parts,
    params: Params,
    model_dir: Path,
    phases: tuple[str, ...],
    outcome: Outcome,
) -> None:
    """Plans the step of each phase; --compile_only also writes the plans to compile_dir."""
    from portwright.tensorflow.planning.plan import compile_step

    folder = arguments.compile_dir or model_dir / "compile"
    estimator = Estimator(
        parts.model_fn,
        config=RunConfig(model_dir=str(model_dir), tf_random_seed=params.runconfig.seed),
        params=params.values,
    )
    documents: dict[str, Any] = {}
    for mode in phases:
        planned = compile_step(
            estimator,
            parts.input_fn(mode, params.values),
            validate_only=not arguments.compile_only,
            mode=mode,
            target=arguments.target.name.lower(),
            out=folder if len(phases) == 1 else folder / mode,
            name=script_folder().name,
            root=script_folder(),
            note=outcome.lines.append,
            raises=False,
        )
        documents[mode] = planned.as_json()
        if not planned.is_good:
            outcome.status = ExitStatus.FINDINGS
    outcome.more["compiled" if arguments.compile_only else "validated"] = documents
