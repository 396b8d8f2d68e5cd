"""A loss curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from portwright.launch.metrics_file import mean

_LOG_RATIO = 20.0  # between the highest and the lowest, from which on equal factors are equal heights


def resample(series: Sequence[tuple[int, float]], width: int) -> list[float | None]:
    """Means over equal parts of the steps; None where a part has no step, NaN where one was not finite."""
    if not series or width < 1:
        return []
    first, last = series[0][0], series[-1][0]
    parts: list[list[float]] = [[] for _ in range(min(width, len(series)))]
    for step, loss in series:
        share = (step - first) / (last - first) if last > first else 0.0
        parts[min(len(parts) - 1, max(0, int(share * len(parts))))].append(loss)
    return [mean(part) if part else None for part in parts]


def sparkline(series: Sequence[tuple[int, float]], width: int, levels: str, broken: str) -> str:
    """At most `width` signs, the newest right; `broken` stands where a loss was not finite."""
    values = resample([(step, x if math.isfinite(x) else math.nan) for step, x in series], width)
    finite = [x for x in values if x is not None and math.isfinite(x)]
    if not finite:
        return broken * len([x for x in values if x is not None])
    scale = _Scale(min(finite), max(finite))
    signs, before = [], levels[0]
    for value in values:
        if value is not None:
            before = levels[round(scale(value) * (len(levels) - 1))] if math.isfinite(value) else broken
        signs.append(before)
    return "".join(signs)


class _Scale:
    """From the lowest (0) to the highest (1) of a curve."""

    def __init__(self, low: float, high: float) -> None:
        self._is_log = low > 0 and high / low > _LOG_RATIO
        self._low, self._high = (math.log(low), math.log(high)) if self._is_log else (low, high)

    def __call__(self, value: float) -> float:
        value = math.log(value) if self._is_log else value
        # Halves, since the difference of two large numbers may be infinite.
        spread = self._high / 2 - self._low / 2
        return min(1.0, max(0.0, (value / 2 - self._low / 2) / spread)) if spread > 0 else 0.5
