"""The supervisor process of a job without a scheduler: runs job.sh, and runs it again where a scheduler would requeue it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from portwright.errors import PortwrightError
from portwright.job.atomic import atomic_write_text
from portwright.launch.checkpoints_seen import list_seen
from portwright.launch.local import (
    RECORD,
    RESTARTS_VARIABLE,
    own_record,
    read_manifest,
    read_state,
    write_state,
)
from portwright.launch.process_tree import (
    Ending,
    adopt_orphans,
    die_with_parent,
    living,
    own_descendants,
    wait_for_a_child,
)
from portwright.launch.slurm import ENDED

_LOOK_SECONDS = 0.5


class Supervisor:
    """Runs job.sh until it has ended for good."""

    def __init__(self, folder: Path, minutes: int | None, grace_seconds: int, max_retries: int) -> None:
        self._folder, self._grace_seconds, self._max_retries = folder, grace_seconds, max_retries
        self._limit_seconds = float("inf") if minutes is None else minutes * 60.0
        self._cancelled = False

    def run(self) -> int:
        adopt_orphans()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # waited for, not handled
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "_cancelled", True))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        atomic_write_text(self._folder / RECORD, json.dumps(own_record()) + "\n")
        restarts = retries = 0
        reached: object = None  # when the script was last killed
        while True:
            status, timed_out = self._attempt(restarts)
            state = read_state(self._folder).get("state")
            if self._cancelled:
                self._end("cancelled", status, "cancelled.")
                return status
            if state in ENDED and not timed_out:
                return status
            if state != "requeued":
                if timed_out:
                    self._end("failed", status, "the time limit was reached before the tasks had saved.")
                    return status
                if status <= 128:
                    said = f"job.sh ended with status {status} before it said how."
                    self._end("done" if status == 0 else "failed", status, said)
                    return status
                # The script itself was killed; treated like the loss of a node.
                before, reached = reached, self._find_reached()
                retries = retries + 1 if reached == before else 1
                if retries > self._max_retries:
                    self._end("failed", status, f"job.sh was killed ({status}); that was once too often.")
                    return status
                self._say(f"job.sh was killed ({status}); it begins again.")
            restarts += 1

    def _attempt(self, restarts: int) -> tuple[int, bool]:
        """Runs job.sh once; gives its status, and whether the time limit ended it."""
        script = subprocess.Popen(
            ["bash", str(self._folder / "job.sh")],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent(),
            env={**os.environ, RESTARTS_VARIABLE: str(restarts)},
        )
        began, ending = time.monotonic(), Ending(own_descendants)
        is_warned = timed_out = False
        while script.poll() is None:
            spent = time.monotonic() - began
            if spent > self._limit_seconds - self._grace_seconds and not is_warned and not ending.has_begun:
                is_warned = True
                script.send_signal(signal.SIGUSR1)
            if self._cancelled or spent > self._limit_seconds:
                timed_out = timed_out or (not self._cancelled and not ending.has_begun)
                ending.begin()
            ending.press()
            wait_for_a_child(_LOOK_SECONDS)
        ending.begin()  # no process of this attempt may run beside the next one
        while living(own_descendants()):
            ending.press()
            wait_for_a_child(0.1)
        status = int(script.returncode)
        return (128 - status if status < 0 else status), timed_out

    def _find_reached(self) -> tuple[int | None, frozenset[str]]:
        """The job's progress: its newest checkpoint, and the steps that are done."""
        model_dir = read_manifest(self._folder).get("model_dir")
        checkpoints: list[int] = []
        if isinstance(model_dir, str) and model_dir:
            with contextlib.suppress(OSError):
                checkpoints = [seen.step for seen in list_seen(Path(model_dir))]
        done = frozenset(path.name for path in self._folder.glob("steps/*.done"))
        return max(checkpoints, default=None), done

    def _end(self, state: str, status: int, said: str) -> None:
        """Writes the end into the state file; a full disk does not change the exit status."""
        self._say(said)
        try:
            write_state(self._folder, state=state, status=status)
        except (OSError, PortwrightError) as error:
            self._say(f"how the job ended could not be noted. {error}")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a full disk; there is nowhere else to write it
            os.write(1, f"portwright: {line}\n".encode())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m portwright.launch.supervisor", description="Run a job's script."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=int, default=None)
    parser.add_argument("--grace-seconds", type=int, default=120)
    parser.add_argument("--max-retries", type=int, default=3)
    given = parser.parse_args(argv)
    return Supervisor(given.folder.absolute(), given.minutes, given.grace_seconds, given.max_retries).run()


if __name__ == "__main__":
    sys.exit(main())
