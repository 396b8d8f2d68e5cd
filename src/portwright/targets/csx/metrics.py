"""Metrics of a model that is traced: they look at values, which are there only in the SDK's closures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from portwright.runtime.metrics.base import Metric


@contextmanager
def metrics_through_closures(cstorch: Any, traces: bool) -> Iterator[None]:
    """Inside, calling a metric puts its update off until the values of the step are on the host."""
    if not traces:
        yield
        return

    @cstorch.step_closure  # type: ignore[untyped-decorator]
    def update(metric: Metric, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        metric.update(*arguments, **named)

    def call(metric: Metric, *arguments: Any, **named: Any) -> None:
        update(metric, arguments, named)

    former = Metric.__call__
    Metric.__call__ = call  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Metric.__call__ = former  # type: ignore[method-assign]
