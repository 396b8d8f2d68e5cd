"""Runs an Estimator: logs, evaluates between stretches of training, stops on a signal."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from portwright.errors import ExitStatus, NonFiniteError, PortwrightError, UserError
from portwright.job.atomic import check_writable
from portwright.job.blame import refusing_exits
from portwright.job.logs import Console, RunLog, read_metrics
from portwright.job.outcome import Outcome
from portwright.job.params import Params
from portwright.job.progress import Progress
from portwright.job.runconfig import find_last_step
from portwright.job.signals import StopSignals
from portwright.tensorflow.checkpoints import step_of
from portwright.tensorflow.estimator import Estimator
from portwright.tensorflow.evaluation import OnBatch
from portwright.tensorflow.failures import explain, explain_non_finite
from portwright.tensorflow.first_batch import FirstBatch, LearningRate, find_non_finite, reread_batch
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.monitor import Monitor, watching
from portwright.tensorflow.processes import Processes
from portwright.tensorflow.run_config import RunConfig
from portwright.tensorflow.run_model import WatchedModel
from portwright.tensorflow.run_parts import Parts
from portwright.tensorflow.stream_lanes import Lanes
from portwright.tensorflow.stream_marks import Marks

if TYPE_CHECKING:
    from portwright.tensorflow.run_stream import BatchStream


class _Stopped(Exception):
    """A signal came in the middle of an evaluation."""


class Trainer:
    """One run of an Estimator."""

    def __init__(
        self,
        parts: Parts,
        params: Params,
        model_dir: Path,
        console: Console,
        signals: StopSignals,
        outcome: Outcome,
        processes: Processes | None = None,
    ) -> None:
        self.stream: BatchStream | None = None  # the batches of the training, if other tasks read its data
        self.processes = processes  # those that train together; None for a single process
        self._is_chief = processes is None or processes.rank == 0
        self._parts, self._params, self._config = parts, params, params.runconfig
        self._model_dir, self._console, self._signals, self._outcome = model_dir, console, signals, outcome
        self.model = WatchedModel(parts.model_fn)
        self._step = 0
        self._first_step = 0
        self._num_steps = 0  # the steps that this process has made
        self._is_ended_early = False  # whether a signal ended the training
        self._ended = ""  # `Monitor.ended` of the last stretch

    @property
    def is_stopped(self) -> bool:
        return self._signals.requested

    # -- training ------------------------------------------------------------------------------------------

    def train(self, first_step: int, *, evaluates: bool) -> None:
        config = self._config
        last_step = find_last_step(config, first_step, lambda num_epochs: None)
        self._step = self._outcome.step = self._first_step = first_step
        self._check_saving(evaluates)
        estimator = self._make_estimator(self._model_dir)
        if first_step >= last_step:
            self._console.note(
                f"already at step {first_step} of {last_step}: nothing to train. Raise max_steps to go on."
            )
            self._outcome.checkpoint = estimator.latest_checkpoint()
            if evaluates and self._is_chief:
                self._evaluate_now(estimator, None)
            return
        eval_every = config.eval_every if evaluates else 0
        log = self._open_log("train") if self._is_chief else None
        progress = Progress("train", last_step, self._console, start=first_step, shown=self._is_chief)
        started = time.perf_counter()
        try:
            with progress, refusing_exits(lambda: f"the training after step {self._step} of {last_step}"):
                is_due = eval_every and first_step and first_step % eval_every == 0 and self._is_chief
                if is_due and not self._is_evaluated():
                    # The run before was stopped or killed after this checkpoint and before its evaluation.
                    self._evaluate_now(estimator, log)
                self._stretches(estimator, last_step, eval_every if evaluates else None, log, progress)
        finally:
            self._outcome.seconds = time.perf_counter() - started
            self._outcome.step = self._step
            if log is not None:
                log.close()
        self._outcome.checkpoint = estimator.latest_checkpoint()
        if self._is_ended_early and (evaluates or self._step < last_step):
            self._tell_stop()

    def _stretches(
        self,
        estimator: Estimator,
        last_step: int,
        eval_every: int | None,
        log: RunLog | None,
        progress: Progress,
    ) -> None:
        """Trains, and evaluates every `eval_every` steps; 0 stands for one evaluation at the end, None for none."""
        while self._step < last_step:
            end = min(last_step, (self._step // eval_every + 1) * eval_every) if eval_every else last_step
            before = self._step
            self._train_until(estimator, end, log, progress)
            if self._is_anyone_stopped():
                return
            if eval_every is not None and self._step > before:
                if self._is_chief:
                    self._evaluate_now(estimator, log)
                if self._is_anyone_stopped():  # the others wait here while the chief evaluates
                    return
            if self._step < end:
                self._tell_early_end(last_step)
                return

    def _is_anyone_stopped(self) -> bool:
        """Whether this process or another one received a signal.

        A signal that arrives while this process waits for the others counts at the next call, so that all processes agree.
        """
        self._is_ended_early = self._signals.requested
        if self.processes is not None:
            self._is_ended_early = self.processes.total(int(self._is_ended_early)) > 0
        if self._is_ended_early:
            self._signals.follow("another process")
        return self._is_ended_early

    def _train_until(self, estimator: Estimator, end: int, log: RunLog | None, progress: Progress) -> None:
        input_fn = self._parts.input_fn(ModeKeys.TRAIN, self._params.values)
        first_batch = FirstBatch(self.model, self._console.warning)
        start, recent, num_losses = self._step, deque[float](maxlen=5), 0
        num_processes = 1 if self.processes is None else self.processes.size

        def on_log(step: int, values: Mapping[str, float], losses: Sequence[float]) -> None:
            nonlocal num_losses
            self._num_steps += len(losses)
            num_losses += len(losses)
            self._step = step
            recent.extend(losses)
            told = dict(values)
            if first_batch.num_samples is not None and "steps_per_second" in told:
                num_samples = first_batch.num_samples * num_processes
                told["samples_per_second"] = told["steps_per_second"] * num_samples
            if rate.value is not None:
                told["learning_rate"], rate.value = rate.value, None
            self._outcome.values.update(
                {f"train/{k}": told[k] for k in ("loss", "learning_rate") if k in told}
            )
            if log is not None:
                log.write("train", step, told, losses if self._config.save_losses else ())
                if self.stream is not None:
                    log.write("stream", step, self.stream.values())
            progress.update(step, told)

        monitor = Monitor(
            self._console,
            self._signals,
            on_log=on_log,
            log_steps=self._config.log_steps,
            continues_input=True,
            checks_losses=self._config.check_loss_values,
            source=None if self.stream is None else self.stream.source,
        )
        rate = LearningRate(lambda step: monitor.is_logged(step, step == end))
        self.model.checkpoint = estimator.latest_checkpoint() if self._is_chief else None
        tf.keras.utils.set_random_seed(self._config.seed)
        with watching(monitor):
            try:
                estimator.train(input_fn, hooks=[first_batch, rate], max_steps=end)
                self._ended = monitor.ended
            except NonFiniteError as error:
                step = start + num_losses + 1
                # The batch can be read again only if the input began at its start, and this process had all of it.
                fresh = self._first_step == 0 and self.processes is None
                if self.stream is not None and self.stream.source.is_shared_out:
                    fresh = False  # called for one process, the input function gives other batches
                tf.keras.utils.set_random_seed(self._config.seed)
                bad = find_non_finite(reread_batch(estimator, input_fn, step)) if fresh else None
                raise explain_non_finite(step, bad, recent) from error
            except tf.errors.OpError as error:
                failure = None if self.stream is None else self.stream.source.failure
                if failure is None:
                    raise
                raise failure if isinstance(failure, PortwrightError) else explain(failure) from error

    def make_lanes(self) -> Lanes:
        """Readers of the training's data that give the batches that the training would read itself."""
        input_fn = self._parts.input_fn(ModeKeys.TRAIN, self._params.values)
        marks = Marks(self._model_dir, self._config.checkpoint_steps or 0, self._console.note)
        return Lanes(self._make_estimator(self._model_dir), input_fn, self._config.seed, marks)

    def _tell_early_end(self, last_step: int) -> None:
        name = self._parts.input_fn(ModeKeys.TRAIN, self._params.values).name
        if not self._num_steps:
            raise UserError(
                f"{name} gave no batch: there are fewer samples than batch_size, and drop_remainder leaves them out, or "
                "there are none at all.",
                "Lower train_input.batch_size, or look at the files that are read.",
            )
        if self._ended == "data":
            why = f"the training data ended at step {self._step} of {last_step}: let {name} repeat() its dataset to go on."
        else:
            why = f"a hook stopped the training at step {self._step} of {last_step}."
        self._console.note(why)

    def _tell_stop(self) -> None:
        self._outcome.status = self._signals.exit_status
        saved = f"saved model.ckpt-{self._step}. The same command resumes."
        if self._config.checkpoint_steps == 0:
            # Not requeued: without a checkpoint it would start from the beginning each time.
            self._outcome.status = ExitStatus.INTERRUPTED
            saved = "checkpoint_steps is 0, so nothing was saved and the same command starts anew."
        self._console.note(f"stopped by {self._signals.reason} at step {self._step}: {saved}")

    def _check_saving(self, evaluates: bool) -> None:
        if evaluates and self._config.checkpoint_steps == 0:
            raise UserError(
                "mode train_and_eval evaluates checkpoints, and runconfig.checkpoint_steps is 0.",
                "Set checkpoint_steps, or use --mode train.",
            )

    # -- evaluating ----------------------------------------------------------------------------------------

    def evaluate(self, checkpoint: str) -> dict[str, float]:
        """Evaluates a checkpoint and logs the result; returns {} if a signal stops it."""
        self._step = self._outcome.step = step_of(checkpoint)
        with self._reading_estimator() as estimator:
            return self._evaluate(estimator, checkpoint, None)

    def _evaluate_now(self, estimator: Estimator, log: RunLog | None) -> dict[str, float]:
        return self._evaluate(estimator, estimator.latest_checkpoint(), log)

    def _evaluate(self, estimator: Estimator, checkpoint: str | None, log: RunLog | None) -> dict[str, float]:
        input_fn = self._parts.input_fn(ModeKeys.EVAL, self._params.values)
        progress = Progress("eval", self._config.eval_steps, self._console, lines=False)
        num_batches = 0

        def on_step(done: int) -> None:
            nonlocal num_batches
            num_batches = done
            if self._signals.requested:
                raise _Stopped
            progress.update(done, {})

        self.model.checkpoint = checkpoint
        tf.keras.utils.set_random_seed(self._config.seed)
        with progress, watching(Monitor(self._console)):
            try:
                results = estimator.evaluate(
                    input_fn,
                    steps=self._config.eval_steps,
                    hooks=[OnBatch(on_step)],
                    checkpoint_path=checkpoint,
                )
            except _Stopped:
                return {}
        if not num_batches:
            raise UserError(
                f"{input_fn.name} gave no batch: there are fewer samples than batch_size, and drop_remainder leaves them "
                "out, or there are none at all.",
                "Lower eval_input.batch_size, or look at the files that are read.",
            )
        values = {name: float(value) for name, value in results.items() if _is_number(name, value)}
        if log is not None:
            log.write("eval", self._step, values)
        else:
            self._log_evaluation(values)
        self._outcome.add_evaluation(values)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._console.info(f"eval at step {self._step}: {shown}")
        return values

    def _is_evaluated(self) -> bool:
        path = self._model_dir / "train" / "metrics.jsonl"
        return path.is_file() and any(
            line["step"] == self._step and line["kind"] == "eval" for line in read_metrics(path)
        )

    def _log_evaluation(self, values: dict[str, float]) -> None:
        try:
            with self._open_log("eval") as log:
                log.write("eval", self._step, values)
        except (
            UserError
        ) as error:  # a run of another user can be evaluated, though its folder is not writable
            self._console.warning(f"the evaluation is not logged: {error.message}")

    # -- predicting ----------------------------------------------------------------------------------------

    def predict(self, checkpoint: str) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        """Yields the model's predictions for each batch, by name."""
        input_fn = self._parts.input_fn(ModeKeys.PREDICT, self._params.values)
        self.model.checkpoint = checkpoint
        tf.keras.utils.set_random_seed(self._config.seed)
        with self._reading_estimator() as estimator, watching(Monitor(self._console)):
            batches = estimator.predict(input_fn, checkpoint_path=checkpoint, yield_single_examples=False)
            for batch in batches:
                named = batch if isinstance(batch, dict) else {"predictions": batch}
                yield {name: _storable(value) for name, value in named.items()}
                if self._signals.requested:
                    return

    # -- both ----------------------------------------------------------------------------------------------

    @contextmanager
    def _reading_estimator(self) -> Iterator[Estimator]:
        """An Estimator that writes its files beside the run's, or to a temporary folder if that is not writable."""
        try:
            self._model_dir.mkdir(parents=True, exist_ok=True)
            check_writable(self._model_dir)
        except OSError:
            with tempfile.TemporaryDirectory() as folder:
                yield self._make_estimator(Path(folder))
            return
        yield self._make_estimator(self._model_dir)

    def _make_estimator(self, model_dir: Path) -> Estimator:
        config = self._config
        summary_steps = config.save_summary_steps or config.log_steps
        return Estimator(
            self.model.model_fn,
            config=RunConfig(
                model_dir=str(model_dir),
                tf_random_seed=config.seed,
                save_summary_steps=summary_steps or None if config.enable_summaries else None,
                save_checkpoints_steps=config.checkpoint_steps or None,
                save_checkpoints_secs=None,
                keep_checkpoint_max=config.max_checkpoints or 0,
                log_step_count_steps=None,
            ),
            params=self._params.values,
        )

    def _open_log(self, kind: str) -> RunLog:
        return RunLog(
            self._model_dir / kind,
            enable_summaries=self._config.enable_summaries
            and kind == "train",  # the Estimator itself writes those of "eval"
            step=self._step if kind == "train" else None,
            console=self._console,
        )


def _is_number(name: str, value: Any) -> bool:
    return name != "global_step" and np.ndim(value) == 0 and isinstance(value, (int, float, np.number))


def _storable(value: Any) -> np.ndarray[Any, Any]:
    """An array that .npz holds without pickling: text as bytes of one length, bfloat16 as float32."""
    array: np.ndarray[Any, Any] = np.asarray(value)
    if array.dtype == object:
        return array.astype(np.bytes_)
    if array.dtype == tf.bfloat16.as_numpy_dtype:
        return array.astype(np.float32)
    return array
