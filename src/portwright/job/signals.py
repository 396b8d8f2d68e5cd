"""Signals that ask a run to save and stop.

SIGTERM and SIGUSR1 come from a scheduler: save, and ask to be requeued. SIGINT comes from a person: save and stop;
a second one stops at once. The handlers only note the signal; the trainer asks between steps.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

from portwright.errors import ExitStatus

_REQUEUE = (signal.SIGTERM, signal.SIGUSR1)

# Schedulers and torchrun follow a SIGTERM with a SIGKILL after 30 seconds, so a run that has not saved by then will not.
WORKER_GRACE_SECONDS = 30.0


class StopSignals:
    """Notes stop signals while the block runs, then puts the former handlers back.

    `requested` is a plain attribute, so that asking at each step costs nothing. `note` is told when signals cannot be
    caught: Python lets only the main thread do that.
    """

    def __init__(self, note: Callable[[str], None] | None = None) -> None:
        self.requested = False
        self.reason = ""
        self.exit_status = ExitStatus.OK
        self._note = note
        self._former: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is not threading.main_thread():
            if self._note is not None:
                self._note(
                    "this run is not in the main thread, so it cannot catch signals: SIGTERM, SIGUSR1 and Ctrl-C will "
                    "not save a checkpoint first."
                )
            return self
        self._install((*_REQUEUE, signal.SIGINT))
        if _early is not None:
            # An early signal counts; later the handlers from before `install_early` are restored.
            self._former.update(_early._former)
            _ACTIVE.remove(_early)
            if _early.requested and not self.requested:
                self._request(_early.reason, _early.exit_status)
            _set_early(None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _install(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            former = signal.getsignal(number)
            if number == signal.SIGINT and former is signal.SIG_IGN:
                continue  # a shell ignores Ctrl-C for background jobs
            self._former[number] = former
            signal.signal(number, self._on_signal)
        _ACTIVE.append(self)

    def _restore(self) -> None:
        if self in _ACTIVE:
            _ACTIVE.remove(self)
        for number, former in self._former.items():
            # None is a handler that is not Python's, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if former is None else former)
        self._former = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number != signal.SIGINT:
            if self.exit_status is not ExitStatus.INTERRUPTED:  # after a Ctrl-C nothing is requeued
                self._request(name, ExitStatus.REQUEUE)
            return
        if self.exit_status is ExitStatus.INTERRUPTED:
            raise KeyboardInterrupt
        self._request(name, ExitStatus.INTERRUPTED)

    def follow(self, reason: str) -> None:
        """Stops as if a signal to requeue had come here, because one came to another process of the run."""
        if not self.requested:
            self._request(reason, ExitStatus.REQUEUE)

    def end(self) -> NoReturn:
        """Ends the process in the way that the received signal asks for."""
        if self.exit_status is ExitStatus.INTERRUPTED:
            raise KeyboardInterrupt
        raise SystemExit(int(self.exit_status))

    def _request(self, reason: str, exit_status: ExitStatus) -> None:
        self.reason = reason
        self.exit_status = exit_status
        self.requested = True  # set last, since readers of it read the others next


def end_if_asked() -> None:
    """Ends the process if any StopSignals has noted a signal: for work that has nothing to save."""
    for signals in _ACTIVE:
        if signals.requested:
            signals.end()


def install_early() -> None:
    """Notes SIGTERM and SIGUSR1 from now on, for the StopSignals to come; without this, one that arrives while
    torch is imported or data prepared kills the process.

    Ctrl-C still interrupts, as there is nothing to save yet. Does nothing outside the main thread.
    """
    if _early is None and threading.current_thread() is threading.main_thread():
        early = StopSignals()
        early._install(_REQUEUE)
        _set_early(early)


def shield_worker() -> None:
    """Makes a data-loader worker leave stop signals to its parent; call it in `worker_init_fn`.

    A signal to the process group (torchrun's), or from SLURM to all processes of a job step, reaches the workers too,
    and one that dies takes the run down before it has saved. A worker that gets SIGTERM ends half a minute later, or
    when its parent is gone; by then the parent has closed a healthy one.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, *_REQUEUE):
        signal.signal(number, signal.SIG_IGN)
    # Not masked, as programs that the worker starts would inherit that. A handler alone would not run while native
    # code is stuck, but the wake-up pipe is written even then.
    signal.signal(signal.SIGTERM, lambda *_: None)
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    threading.Thread(
        target=_end_in_time, args=(readable, os.getppid()), name="portwright-end", daemon=True
    ).start()


def _end_in_time(readable: int, parent: int) -> None:
    while signal.SIGTERM not in os.read(readable, 64):
        pass
    deadline = time.monotonic() + WORKER_GRACE_SECONDS
    while time.monotonic() < deadline and os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)


_early: StopSignals | None = None
_ACTIVE: list[StopSignals] = []


def _set_early(early: StopSignals | None) -> None:
    global _early
    _early = early


def _leave_signals_to_parent() -> None:
    # In a forked child our handlers would swallow the SIGTERM with which its parent ends it.
    if not _ACTIVE:
        return
    for handlers in _ACTIVE:
        for number in handlers._former:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
        handlers._former = {}
    _ACTIVE.clear()
    _set_early(None)


os.register_at_fork(after_in_child=_leave_signals_to_parent)
