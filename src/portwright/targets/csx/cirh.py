"""Reads CIRH, the vendor's MLIR dialect that the front end writes."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_OP = re.compile(r'^\s*(?:%[\w:, %]+ = )?"?cirh\.(?P<name>\w+)')
_TENSOR = re.compile(r"tensor<(?:[0-9?]+x)*(?P<dtype>[^<>x,]+)>")
_LOCATION = re.compile(r"^#loc\d* = ")


@dataclass(frozen=True)
class Cirh:
    """The ops and number formats of a lowered step."""

    ops: dict[str, int]  # how often each occurs, the most frequent first
    dtypes: dict[str, int]  # the number of tensors in the text, by number format

    @property
    def num_ops(self) -> int:
        return sum(self.ops.values())


def read_cirh(path: Path) -> Cirh | None:
    """None where the file is missing, empty or without an op: then nothing was lowered, whatever the exit status said."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    ops: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    for line in text.splitlines():
        if _LOCATION.match(line):
            continue
        if found := _OP.match(line):
            ops[found["name"]] += 1
            dtypes.update(dtype["dtype"] for dtype in _TENSOR.finditer(line))
    return Cirh(dict(ops.most_common()), dict(dtypes.most_common())) if ops else None
