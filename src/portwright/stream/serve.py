"""How workers and the coordinator of a launch meet, and part."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from portwright.job.signals import StopSignals
from portwright.stream.pool import HERE, Pool
from portwright.stream.roles import KEY_FILE, KEY_SECONDS, Role, find_key
from portwright.stream.wire import Parts
from portwright.stream.worker import Ending, WrongKeyError, work

_LATE_SECONDS, _TELL_SECONDS, _LOOK_SECONDS = 30.0, 3.0, 0.2


def await_late_workers(
    pool: Pool, num_workers: int, is_stopped: Callable[[], bool], note: Callable[[str], None]
) -> None:
    """Waits a while for workers that have not come yet: a worker that finds no coordinator takes it for dead, and fails the step."""
    start, is_told = time.monotonic(), False
    while not is_stopped():
        missing = num_workers - sum(each.name != HERE for each in pool.counts())
        waited = time.monotonic() - start
        if missing <= 0 or waited > _LATE_SECONDS:
            return
        if waited > _TELL_SECONDS and not is_told:
            is_told = True
            note(f"waiting for {missing} worker(s) that have not begun, to tell them that this is over.")
        time.sleep(_LOOK_SECONDS)


def work_with_key(
    role: Role,
    model_dir: Path,
    handle: Callable[[bytes], Parts],
    note: Callable[[str], None],
    signals: StopSignals,
) -> Ending:
    """Works for the coordinator until it says goodbye or is gone.

    A key in model_dir may be one that a killed run left, which the coordinator is about to replace: it is read again for a while.
    The coordinator obeys a stop signal, and may need batches until it has saved; a worker obeys only where no coordinator has come yet.
    """
    has_begun = threading.Event()  # or ended, by an error of its own

    def begin_and_handle(body: bytes) -> Parts:
        has_begun.set()
        return handle(body)

    threading.Thread(
        target=_end_if_stopped, args=(signals, has_begun), name="stream stop", daemon=True
    ).start()
    try:
        return _work_until_the_key_fits(role, model_dir, begin_and_handle, note)
    finally:
        has_begun.set()


def _end_if_stopped(signals: StopSignals, has_begun: threading.Event) -> None:
    """Ends a worker that was told to stop before the coordinator asked it for anything, which may be minutes away."""
    while not has_begun.wait(_LOOK_SECONDS):
        if signals.requested:
            sys.stderr.flush()
            os._exit(int(signals.exit_status))


def _work_until_the_key_fits(
    role: Role, model_dir: Path, handle: Callable[[bytes], Parts], note: Callable[[str], None]
) -> Ending:
    deadline = time.monotonic() + KEY_SECONDS
    while True:
        try:
            return work(role.address, find_key(model_dir), str(role.rank), handle, note=note)
        except WrongKeyError:
            if os.environ.get(KEY_FILE) or time.monotonic() > deadline:
                raise
            time.sleep(0.3)
