"""Cells of a CSV that are longer than the 128 kB which csv has as its bound; the bound belongs to the process.

Readers are generators, and may begin and end by turns: the first one raises the bound, the last one puts it back.
"""

from __future__ import annotations

import csv
import threading

_LONGEST = 1 << 30
_lock = threading.Lock()
_num_readers = 0
_before = 0


def begin_long_cells() -> None:
    global _num_readers, _before
    with _lock:
        if _num_readers == 0:
            _before = csv.field_size_limit(_LONGEST)
        _num_readers += 1


def end_long_cells() -> None:
    global _num_readers
    with _lock:
        _num_readers -= 1
        if _num_readers == 0:
            csv.field_size_limit(_before)
