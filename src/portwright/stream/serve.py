"""A worker's meeting with the coordinator of its launch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from portwright.stream.roles import KEY_FILE, KEY_SECONDS, Role, find_key
from portwright.stream.wire import Parts
from portwright.stream.worker import Ending, WrongKeyError, work


def work_with_key(
    role: Role, model_dir: Path, handle: Callable[[bytes], Parts], note: Callable[[str], None]
) -> Ending:
    """Works for the coordinator until it says goodbye or is gone.

    A key in model_dir may be one that a killed run left, which the coordinator is about to replace: it is read again for a while.
    """
    deadline = time.monotonic() + KEY_SECONDS
    while True:
        try:
            return work(role.address, find_key(model_dir), str(role.rank), handle, note=note)
        except WrongKeyError:
            if os.environ.get(KEY_FILE) or time.monotonic() > deadline:
                raise
            time.sleep(0.3)
