"""What every metric is: sums that grow with each batch, and a value read from them at the end; and all metrics of the process."""

from __future__ import annotations

import gc
import itertools
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from portwright.discover import find_targets
from portwright.errors import UserError

# Float64 counts exactly to 2**53 and holds weighted sums too, so one type serves every accumulator.
SUM_DTYPE = torch.float64
# Where such sums cannot be trusted, a metric is counted on the host. Looked up here, since torch.compile cannot follow a discovery.
_NARROW_DEVICES = frozenset(
    kind
    for target in find_targets().values()
    if "no_wide_sums" in target.needs
    for kind in target.device_types
)


def as_tensor(name: str, what: str, received: Any) -> Tensor:
    """A detached tensor, int64 or float64, of what was passed as `what` to metric `name`.

    The wide types are needed for comparing: as bfloat16 class 257 equals class 256, as uint8 -100 equals 156.
    """
    try:
        tensor = received.detach() if isinstance(received, Tensor) else torch.as_tensor(received)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"Metric '{name}' received {what} of type {type(received).__name__}, which is no tensor.",
            f"Pass {what} as a tensor of numbers.",
        ) from error
    if tensor.is_complex():
        raise UserError(
            f"Metric '{name}' received complex {what}.", f"Pass {what} as a tensor of real numbers."
        )
    if tensor.device.type in _NARROW_DEVICES:
        tensor = tensor.cpu()
    return tensor.to(SUM_DTYPE if tensor.is_floating_point() else torch.int64)


def pair_up(name: str, labels: Any, predictions: Any) -> tuple[Tensor, Tensor]:
    """Labels and predictions as two tensors of one shape and device."""
    label = as_tensor(name, "labels", labels)
    prediction = as_tensor(name, "predictions", predictions).to(label.device)
    if label.numel() != prediction.numel():
        raise UserError(
            f"Metric '{name}' received labels of shape {tuple(label.shape)} and predictions of shape "
            f"{tuple(prediction.shape)}.",
            "Pass one prediction per label; of logits, logits.argmax(-1).",
        )
    return label, prediction.reshape(label.shape)


def spread(name: str, weights: Any, like: Tensor) -> Tensor:
    """Weights as float64, one for each element of `like`; none means that each counts once.

    They may have as many elements as `like`, be a single number, or have its rank and broadcast. A lower rank does
    not broadcast: of a square batch nobody could tell whether rows or columns were meant.
    """
    if weights is None:
        return torch.ones(like.shape, dtype=SUM_DTYPE, device=like.device)
    weight = as_tensor(name, "weights", weights).to(device=like.device, dtype=SUM_DTYPE)
    if weight.numel() == like.numel():
        return weight.reshape(like.shape)
    same_rank = weight.dim() == like.dim()
    fits = same_rank and all(w in (1, n) for w, n in zip(weight.shape, like.shape, strict=True))
    if weight.dim() == 0 or fits:
        return weight.expand(like.shape)
    raise UserError(
        f"Metric '{name}' received weights of shape {tuple(weight.shape)} for labels of shape {tuple(like.shape)}.",
        "Pass one weight per label, or a shape of the same rank that broadcasts to it.",
    )


MetricValue = float | dict[str, float]
Sums = Mapping[str, Tensor]

# Weak, so that a model that is gone reports nothing; numbered, so that order is that of construction.
LIVING: weakref.WeakValueDictionary[int, Metric] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


class NoValueError(UserError):
    """The metric saw nothing to report on, which is not the same as a bad value."""


class Metric(ABC):
    """A value over a whole evaluation, from sums that live on the device of the inputs.

    A metric of your own says which sums it keeps (`sum_shapes`), adds to them in `update` (`self.add(...)`), and
    computes its value from them (`value`). `update` must not read a tensor's value: that would make the host wait
    for the device at every batch.
    """

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise UserError(
                f"A metric's name must be text, received {name!r}.", 'Write, say, name="eval/accuracy".'
            )
        self.name: str = name or type(self).__name__
        self._sums: dict[str, Tensor] = {}
        self._reduced: dict[str, Tensor] | None = None
        LIVING[next(_NUMBERS)] = self

    @abstractmethod
    def sum_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of the accumulators; () is a scalar."""

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> None:
        """Takes one batch in."""

    @abstractmethod
    def value(self, sums: Sums) -> MetricValue:
        """The value of the sums, which are in host memory; raises NoValueError when they hold nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.update(*args, **kwargs)

    def add(self, **amounts: Tensor) -> None:
        """Adds to the accumulators; `update` calls it once a batch."""
        # Sums are replaced, never changed in place: a tensor born in inference_mode may not be written outside it.
        sums = self._sums or _zeros(self.sum_shapes(), next(iter(amounts.values())).device)
        self._sums = {
            name: total.to(amounts[name].device) + amounts[name].detach().to(SUM_DTYPE)
            for name, total in sums.items()
        }
        self._reduced = None

    def reduce(self, all_reduce: Callable[[Tensor], None]) -> None:
        """Sums over all processes with `all_reduce`, which must add in place; the next `compute` is global.

        Call it on every process; the sums of one that saw no batch are in host memory. The process's own sums stay
        as they are, so an update and another reduce after it are right.
        """
        own = self._sums or _zeros(self.sum_shapes(), torch.device("cpu"))
        reduced = {name: own[name].clone() for name in sorted(own)}
        for total in reduced.values():
            all_reduce(total)
        self._reduced = reduced

    def compute(self) -> MetricValue:
        """The value over everything since the last reset; raises NoValueError when there was nothing."""
        sums = self._sums if self._reduced is None else self._reduced
        if not sums:
            raise self.no_value("it was never called")
        return self.value({name: total.cpu() for name, total in sums.items()})

    def reset(self) -> None:
        """Forgets every batch."""
        self._sums = {}
        self._reduced = None

    def no_value(self, why: str) -> NoValueError:
        """The error of a metric that has nothing to report."""
        return NoValueError(
            f"Metric '{self.name}' has no value: {why}.",
            "Call it on each batch of the evaluation, with weights that are not all zero.",
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copied model (deepcopy) brings a copied metric, which must be reported like any other.
        self.__dict__.update(state)
        LIVING[next(_NUMBERS)] = self


def _zeros(shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.zeros(shape, dtype=SUM_DTYPE, device=device) for name, shape in shapes.items()}


def registered_metrics() -> list[Metric]:
    """Every metric that still exists, oldest first."""
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
    """Metrics ignore the batches inside, for a process that computes only to keep step with the others."""
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
