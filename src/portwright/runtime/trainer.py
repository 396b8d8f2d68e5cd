"""Drives a session through a run: logs, saves, evaluates, stops when told to."""

from __future__ import annotations

import time
from pathlib import Path

from portwright.errors import ExitStatus, UserError
from portwright.job.blame import refusing_exits
from portwright.job.logs import Console, RunLog, read_metrics
from portwright.job.outcome import Outcome
from portwright.job.progress import Progress
from portwright.job.runconfig import RunConfig, find_last_step
from portwright.job.signals import StopSignals
from portwright.runtime.checkpoint import CheckpointWriter, LoadedCheckpoint
from portwright.runtime.checkpoint_names import take_over
from portwright.target import DataStream, Event, Session, Stretch, World


class _Stopped(Exception):
    """A signal came in the middle of an evaluation."""


class Trainer:
    """One training run on any session."""

    def __init__(
        self,
        session: Session,
        config: RunConfig,
        model_dir: Path,
        world: World,
        signals: StopSignals,
        console: Console,
        outcome: Outcome,
        stream: DataStream | None = None,
    ) -> None:
        self._session, self._config, self._model_dir = session, config, model_dir
        self._world, self._signals, self._console, self._outcome = world, signals, console, outcome
        self._stream = stream
        self._step = 0
        self._saved_step = -1

    def resume(self, loaded: LoadedCheckpoint, *, weights_only: bool) -> None:
        if weights_only:
            shards = take_over(loaded.shards, self._session.state(), self._console.warning)
            self._session.load_state(shards, None)
            return
        self._session.load_state(loaded.shards, loaded.counters)
        self._step = loaded.step
        if loaded.counters is None:
            self._console.note(
                f"{loaded.path} holds weights and a step only: the optimizer and the data start anew."
            )
        else:
            self._saved_step = loaded.step
            self._outcome.checkpoint = str(loaded.path)

    def last_step(self) -> int:
        """The step at which this run ends, from num_steps, max_steps or num_epochs."""
        return find_last_step(self._config, self._step, self._session.steps_in)

    def _check_alignment(self, last_step: int, eval_every: int) -> None:
        """A device that takes several steps a call can stop only between calls."""
        every = self._session.steps_per_call
        asked = {
            "log_steps": self._config.log_steps,
            "checkpoint_steps": self._config.checkpoint_steps,
            "eval_frequency": eval_every,
            "the last step": last_step,
        }
        for name, steps in asked.items():
            if steps % every:
                raise UserError(
                    f"this target takes {every} steps a call, and {name} is {steps}.",
                    f"Make it a multiple of {every}, or take fewer steps a call (IPU: ipu.device_iterations).",
                )

    def train(self, *, evaluates: bool) -> None:
        config, last_step = self._config, self.last_step()
        self._outcome.step = self._step
        if self._step >= last_step:
            self._console.note(
                f"already at step {self._step} of {last_step}: nothing to train. Raise max_steps to go on."
            )
            if evaluates:
                self.evaluate()
            return
        eval_every = config.eval_every if evaluates else 0
        self._check_alignment(last_step, eval_every)
        writer = None
        # Every process takes part in reading the state, which may be spread over them; the first one writes it.
        if config.checkpoint_steps != 0 and self._world.is_main:
            writer = CheckpointWriter(self._model_dir, config.max_checkpoints, self._console.warning)
        log = self._open_log("train") if self._world.is_main else None
        title = self._outcome.title("train")
        progress = Progress(title, last_step, self._console, start=self._step, shown=self._world.is_main)
        started = time.perf_counter()
        stop: tuple[str, ExitStatus] | None = None
        try:
            with progress, refusing_exits(lambda: f"the training after step {self._step} of {last_step}"):
                if config.save_initial_checkpoint and self._step == 0:
                    self._save(writer)
                if eval_every and self._step and self._step % eval_every == 0 and not self._is_evaluated():
                    self.evaluate(log)  # a stop or a kill came between the checkpoint and this evaluation
                while self._step < last_step:
                    end = (
                        min(last_step, (self._step // eval_every + 1) * eval_every)
                        if eval_every
                        else last_step
                    )
                    self._run_stretch(end, last_step, writer, log, progress)
                    stop = self._agreed_stop()
                    if stop is not None and (evaluates or self._step < last_step):
                        self._save(writer)
                        break
                    stop = None
                    if evaluates and not self.evaluate(log):
                        stop = self._agreed_stop()
                        self._save(writer)
                        break
        finally:
            self._outcome.seconds = time.perf_counter() - started
            self._outcome.step = self._step
            if log is not None:
                log.close()
            if writer is not None:
                writer.wait()
        if stop is not None:
            reason, self._outcome.status = stop
            saved = f"saved checkpoint_{self._step}. The same command resumes."
            if config.checkpoint_steps == 0:
                # Nothing to requeue for: it would start from the beginning, again and again.
                self._outcome.status = ExitStatus.INTERRUPTED
                saved = "checkpoint_steps is 0, so nothing was saved and the same command starts anew."
            self._console.note(f"stopped by {reason} at step {self._step}: {saved}")
        # A process that ends before the others is taken for a failure by torchrun, which then kills them: the first one
        # may still be writing.
        self._world.barrier()

    def _agreed_stop(self) -> tuple[str, ExitStatus] | None:
        """Why to stop, if a signal reached any process; they all see the same."""
        signals = self._signals
        asked = self._world.gather((signals.reason, signals.exit_status) if signals.requested else None)
        return next((reason for reason in asked if reason is not None), None)

    def _run_stretch(
        self,
        end: int,
        last_step: int,
        writer: CheckpointWriter | None,
        log: RunLog | None,
        progress: Progress,
    ) -> None:
        config = self._config
        signals = self._signals
        stretch = Stretch(
            first_step=self._step,
            last_step=end,
            log_steps=config.log_steps,
            boundary_steps=config.checkpoint_steps,
            should_stop=lambda: signals.requested,
        )
        before, samples_before = time.perf_counter(), self._session.counters().get("num_samples")
        for event in self._session.train(stretch):
            self._step = event.step
            if event.kind == "boundary":
                wanted = config.checkpoint_steps and (
                    event.step % config.checkpoint_steps == 0 or event.step == last_step or event.step != end
                )
                if wanted:
                    self._save(writer)
                continue
            now = time.perf_counter()
            values = dict(event.values)
            samples = values.pop("num_samples", None)
            values["steps_per_second"] = len(event.losses) / max(now - before, 1e-9)
            if samples is not None and samples_before is not None:
                values["samples_per_second"] = (samples - samples_before) / max(now - before, 1e-9)
            before, samples_before = now, samples
            self._outcome.rates = {
                name: rate for name, rate in values.items() if name.endswith("_per_second")
            }
            self._outcome.values.update(
                {f"train/{k}": values[k] for k in ("loss", "learning_rate") if k in values}
            )
            self._write(log, event, values)
            progress.update(event.step, values)

    def _write(self, log: RunLog | None, event: Event, values: dict[str, float]) -> None:
        if log is None:
            return
        log.write("train", event.step, values, event.losses if self._config.save_losses else ())
        if self._stream is not None:
            log.write("stream", event.step, self._stream.values())

    def _save(self, writer: CheckpointWriter | None) -> None:
        if self._step == self._saved_step or self._config.checkpoint_steps == 0:
            return
        shards, counters = self._session.state(), self._session.counters()
        if self._outcome.emulated is not None:
            counters = {**counters, "emulated": self._outcome.emulated}
        if writer is not None:
            writer.save(self._step, shards, counters)
            if getattr(self._session, "state_is_live", False):
                writer.wait()  # there was no room for a copy, and the next step would change what is being written
        else:
            for _ in shards:  # take part in gathering it
                pass
        self._saved_step = self._step
        self._outcome.checkpoint = str(self._model_dir / f"checkpoint_{self._step}")

    def _is_evaluated(self) -> bool:
        """Whether the log has an evaluation at the current step; all processes get the first one's answer."""
        path = self._model_dir / "train" / "metrics.jsonl"
        found = (
            self._world.is_main
            and path.is_file()
            and any(line["step"] == self._step and line["kind"] == "eval" for line in read_metrics(path))
        )
        return bool(self._world.gather(found)[0])

    def evaluate(self, log: RunLog | None = None) -> dict[str, float]:
        """Evaluates the weights as they are and logs the result at the current step; nothing when a signal stops it."""
        title = self._outcome.title("eval")
        progress = Progress(
            title, self._config.eval_steps, self._console, start=0, shown=self._world.is_main, lines=False
        )
        with progress:
            try:
                values = self._session.evaluate(
                    self._config.eval_steps, lambda done: self._on_batch(done, progress)
                )
            except _Stopped:
                return {}
        if log is not None:
            log.write("eval", self._step, values)
        elif self._world.is_main:
            self._log_evaluation(values)
        self._outcome.add_evaluation(values)
        if self._world.is_main:
            shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self._console.info(f"{self._outcome.title('eval')} at step {self._step}: {shown}")
        return values

    def _on_batch(self, done: int, progress: Progress) -> None:
        # Several processes must finish it together; one may stop in the middle.
        if self._signals.requested and self._world.size == 1:
            raise _Stopped
        progress.update(done, {})

    def _log_evaluation(self, values: dict[str, float]) -> None:
        try:
            with self._open_log("eval") as log:
                log.write("eval", self._step, values)
        except UserError as error:  # another user's run can be evaluated, though not written to
            self._console.warning(f"the evaluation is not logged: {error.message}")

    @property
    def is_stopped(self) -> bool:
        return self._signals.requested

    def take_weights(self, loaded: LoadedCheckpoint) -> None:
        """Takes the weights of a checkpoint, to be read and not trained."""
        self._session.load_state(loaded.shards, None)
        self._step = self._outcome.step = loaded.step

    def _open_log(self, kind: str) -> RunLog:
        step = self._step if kind == "train" else None
        return RunLog(
            self._model_dir / kind,
            enable_summaries=self._config.enable_summaries,
            step=step,
            console=self._console,
            emulated=self._outcome.emulated,
        )
