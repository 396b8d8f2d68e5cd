"""Metrics of a traced model: they read values, which exist only in the SDK's closures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from portwright.patched import patched
from portwright.runtime.metrics.base import Metric


@contextmanager
def metrics_through_closures(cstorch: Any, traces: bool) -> Iterator[None]:
    """Within, a metric's update is delayed until the values of the step are on the host."""
    if not traces:
        yield
        return

    @cstorch.step_closure  # type: ignore[untyped-decorator]
    def update(metric: Metric, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        metric.update(*arguments, **named)

    def call(metric: Metric, *arguments: Any, **named: Any) -> None:
        update(metric, arguments, named)

    with patched(Metric, "__call__", call):
        yield
