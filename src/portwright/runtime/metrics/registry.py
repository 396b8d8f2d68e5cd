"""All metrics of the process, so that a session can report what a model's author made without being told of it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from portwright.runtime.metrics.base import LIVING, Metric, NoValueError


def registered_metrics() -> list[Metric]:
    """Every living metric, oldest first."""
    return [metric for _, metric in sorted(LIVING.items())]


def compute_all_metrics(
    all_reduce: Callable[[Tensor], None] | None = None, *, say: Callable[[str], None] | None = None
) -> dict[str, float]:
    """Values of all metrics that have one; a metric of several values gives `name/part`.

    Metrics may share a name, since a process often builds a training and an evaluation model from one class. Only
    those that saw batches count; if that is several, the second becomes `name_1` and so on. A name that has no
    value is left out, never NaN, and `say` gets the reason. With `all_reduce` (see `Metric.reduce`) values are
    over all processes, each of which must have made the same metrics in the same order.
    """
    if all_reduce is not None:
        # Metrics of a dropped model live on until collected, which each process does at its own time: collect now,
        # or one process would wait in a collective that the others never enter.
        gc.collect()
        for metric in registered_metrics():
            metric.reduce(all_reduce)
    values: dict[str, float] = {}
    num_reported: Counter[str] = Counter()
    silent: dict[str, str] = {}
    for metric in registered_metrics():
        try:
            value = metric.compute()
        except NoValueError as error:
            silent.setdefault(metric.name, str(error))
            continue
        num_before = num_reported[metric.name]
        num_reported[metric.name] += 1
        name = f"{metric.name}_{num_before}" if num_before else metric.name
        values.update(
            {f"{name}/{part}": x for part, x in value.items()} if isinstance(value, dict) else {name: value}
        )
    if say is not None:
        for name, reason in silent.items():
            if name not in num_reported:
                say(reason)
    return values


@contextmanager
def uncounted(applies: bool = True) -> Iterator[None]:
    """Lets batches pass without a trace in any metric, for a process that only keeps step with the others."""
    sums = [(metric, dict(metric._sums)) for metric in registered_metrics()] if applies else []
    yield
    for metric, before in sums:
        metric._sums, metric._reduced = before, None


def reset_all_metrics() -> None:
    """Makes every metric forget its batches, as before an evaluation."""
    for metric in registered_metrics():
        metric.reset()


def clear_registry() -> None:
    """Forgets all metrics; for a new run in the same process."""
    LIVING.clear()
