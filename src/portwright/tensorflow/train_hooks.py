"""The training hooks, and which steps each of them must be called at.

A step that no hook needs is run without hooks, which is faster.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from portwright.job.atomic import explain_os_error

v1 = tf.compat.v1


def wants_step(hook: Any, step: int) -> bool:
    """Whether a hook must be called around the run that makes `step`; true for a hook without a method `wants`."""
    wants = getattr(hook, "wants", None)
    if wants is not None:
        return bool(wants(step))
    known = _KNOWN.get(type(hook))
    return known(hook, step) if known is not None else True


def counts_steps(hook: Any) -> bool:
    """Whether a hook counts its own calls, so that `skip_step` must be called at the other steps."""
    return type(hook) is v1.train.LoggingTensorHook


def skip_step(hook: Any) -> None:
    """Adds to such a hook's counter a step that was made without it."""
    hook._iter_count += 1


def sees_steps(hook: Any) -> bool:
    """Whether a hook has code that runs around steps, rather than only around the session."""
    base = v1.train.SessionRunHook
    return type(hook).before_run is not base.before_run or type(hook).after_run is not base.after_run


def may_stop(hook: Any) -> bool:
    """Whether a hook might ask training to stop; Portwright's, and TensorFlow's that only write, never do."""
    writes = (v1.train.StepCounterHook, v1.train.SummarySaverHook, v1.train.LoggingTensorHook)
    return type(hook) not in writes and getattr(hook, "wants", None) is None


def _is_timed(hook: Any, step: int) -> bool:
    return bool(hook._timer.should_trigger_for_step(step))


def _is_summary_due(hook: Any, step: int) -> bool:
    if hook._next_step is None:
        return True
    hook._next_step = step
    return _is_timed(hook, step)


def _is_log_due(hook: Any, step: int) -> bool:
    return bool(hook._timer is None or hook._timer.should_trigger_for_step(hook._iter_count))


# TensorFlow's hooks that users may pass. Subclasses are not looked up here: they may need every step.
_KNOWN: dict[type, Callable[[Any, int], bool]] = {
    v1.train.CheckpointSaverHook: _is_timed,
    v1.train.StepCounterHook: _is_timed,
    v1.train.SummarySaverHook: _is_summary_due,
    v1.train.LoggingTensorHook: _is_log_due,
    v1.train.StopAtStepHook: lambda hook, step: hook._last_step is None or step >= hook._last_step,
}


class SaveCheckpoints(tf.compat.v1.train.CheckpointSaverHook):  # type: ignore[misc]
    """Saves a checkpoint every so many steps or seconds, at the start and at the end."""

    def wants(self, step: int) -> bool:
        return _is_timed(self, step)

    def _save(self, session: Any, step: Any) -> Any:
        try:
            return super()._save(session, step)
        except tf.errors.OpError as error:
            if "No space left" not in str(error) and "quota" not in str(error):
                raise
            raise explain_os_error(OSError(errno.ENOSPC, ""), Path(self._save_path)) from error


class SaveSummaries(tf.compat.v1.train.SummarySaverHook):  # type: ignore[misc]
    """Writes the graph's summaries every so many steps."""

    def wants(self, step: int) -> bool:
        return _is_summary_due(self, step)


class CountRate(tf.compat.v1.train.StepCounterHook):  # type: ignore[misc]
    """Writes and logs the steps per second every so many steps."""

    def wants(self, step: int) -> bool:
        return _is_timed(self, step)


class LogLoss(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Logs the loss of the first step, and then every so many steps."""

    def __init__(self, loss: Any, global_step: Any, every_steps: int) -> None:
        self._fetches = {"loss": loss, "step": global_step}
        self._every_steps = every_steps
        self._next: int | None = None
        self._logged_at: float | None = None

    def wants(self, step: int) -> bool:
        return self._next is None or step >= self._next

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = int(run_values.results["step"])
        if self._next is not None and step < self._next:
            return
        self._next = step + self._every_steps
        now = time.monotonic()
        took = "" if self._logged_at is None else f" ({now - self._logged_at:.3f} sec)"
        self._logged_at = now
        v1.logging.info("loss = %s, step = %s%s", run_values.results["loss"], step, took)
