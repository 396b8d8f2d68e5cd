"""Makes batches ahead of need in a thread of this process, where that saves time."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch

Item = TypeVar("Item")

_NUM_BATCHES_AHEAD = 2
_NUM_TRIALS = 5
NUM_BATCHES_A_STRETCH = 512  # then it is measured again whether a thread saves time
# A batch must take longer than this: handing it from thread to thread alone takes some 30 µs (measured).
_WORTH_SECONDS = 0.00015


class Pace:
    """Finds out whether a thread may make batches and whether that saves time; a few batches are timed, again and again.

    A thread may not make batches that draw from the process's random generators: the training draws from them too, and
    the order of the draws would be chance. Times change, because files come into memory and checksums are known.
    """

    def __init__(self) -> None:
        self.draws = False  # whether a batch drew from the process's random generators
        self.pays = False
        self._has_looked = False
        self._seconds: list[float] = []
        self._has_cores = len(os.sched_getaffinity(0)) > 1

    @property
    def is_known(self) -> bool:
        return self.draws or not self._has_cores or len(self._seconds) >= _NUM_TRIALS

    def ask_again(self) -> None:
        self._seconds = []

    def watch(self, make: Callable[[], Item]) -> Item:
        """Makes a batch in this thread, times it and sees whether it draws random numbers."""
        before = None if self._has_looked else _random_state()
        start = time.perf_counter()
        made = make()
        self._seconds.append(time.perf_counter() - start)
        if before is not None:
            self._has_looked = True
            self.draws = before != _random_state()
        if len(self._seconds) >= _NUM_TRIALS:
            self.pays = not self.draws and statistics.median(self._seconds) >= _WORTH_SECONDS
        return made


def _random_state() -> tuple[Any, ...]:
    words: Any = np.random.get_state(legacy=False)
    inner = words["state"]
    numpy_state = (inner["key"].tobytes(), inner["pos"], words["has_gauss"], words["gauss"])
    return torch.default_generator.get_state().numpy().tobytes(), random.getstate(), numpy_state


def make_ahead(items: Iterator[Item], make: Callable[[Item], Any]) -> Generator[tuple[Item, Any], None, None]:
    """Yields each item with what a thread made of it, in order; where `items` fails, the error is raised in its turn."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="portwright-data")
    waiting: deque[tuple[Item, Future[Any]]] = deque()
    failure: BaseException | None = None
    is_over = False
    try:
        while True:
            while not is_over and len(waiting) <= _NUM_BATCHES_AHEAD:
                try:
                    item = next(items)
                except StopIteration:
                    is_over = True
                except Exception as error:
                    failure, is_over = error, True
                else:
                    waiting.append((item, pool.submit(make, item)))
            if not waiting:
                break
            item, made = waiting.popleft()
            yield item, made.result()
        if failure is not None:
            raise failure
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
