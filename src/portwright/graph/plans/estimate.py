"""Estimated numbers: each with its formula, its inputs and its possible error.

What is said of a CS-2 rests on the one public compile of a model for it. PSC's page "Compilation Key Metrics to Share" shows both
figures under its PyTorch heading, for model zoo 1.6's fc_mnist with its own params.yaml: 784 inputs, ten hidden layers of 50, ten
classes. (Under TensorFlow, whose fc_mnist has hidden layers of 500 and 300 and so 8.4 times the work, it shows the same 674 cycles
and no utilization.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from portwright import __version__
from portwright.graph.plans.placement import Rectangle, Shares

MADE_BY = f"portwright {__version__}, not the vendor's compiler"
SOURCE = "PSC Neocortex, Compilation Key Metrics to Share: fc_mnist of model zoo 1.6, PyTorch"


@dataclass(frozen=True)
class Estimate:
    """One estimated number."""

    value: float | int
    unit: str
    formula: str
    inputs: Mapping[str, Any]
    interval: tuple[float | int, float | int]
    interval_from: str  # how the interval was derived
    sources: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "unit": self.unit,
            "estimated": True,
            "formula": self.formula,
            "inputs": dict(self.inputs),
            "interval": list(self.interval),
            "interval_from": self.interval_from,
            "sources": list(self.sources),
            "made_by": MADE_BY,
        }


@dataclass(frozen=True)
class Reference:
    """A published compile: what was compiled, and what the vendor's compiler said."""

    layers: tuple[int, ...]  # sizes of a fully connected network
    utilization: float  # of the usable fabric
    cycles: int  # a sample, with the pipeline full
    fabric: tuple[int, int]

    @property
    def products(self) -> float:
        """Operations in matrix products of one training sample, without the gradient of the input."""
        weights = [a * b for a, b in zip(self.layers, self.layers[1:], strict=False)]
        return 2.0 * (2 * sum(weights) + sum(weights[1:]))

    @property
    def cores(self) -> float:
        return self.utilization * math.prod(self.fabric)

    @property
    def work_per_core(self) -> float:
        return self.products / self.cores


FC_MNIST = Reference((784, *[50] * 10, 10), 0.0588006479419213, 674, (757, 996))

_SPREAD = 2.0  # at the calibration point itself: which of two networks was compiled is not certain


def wanted_cores(products: float) -> float:
    """Cores that a model would get with room enough: as much work a core as in the published compile."""
    return products / FC_MNIST.work_per_core


def estimate_utilization(
    products: float, shares: Shares, rectangles: Sequence[Rectangle], fabric: tuple[int, int]
) -> Estimate:
    available = math.prod(fabric)
    value = min(1.0, round(shares.total / available, 16))
    decades = abs(math.log10(products / FC_MNIST.products)) if products > 0 else 6.0
    factor = _SPREAD ** (1 + decades)
    return Estimate(
        value=value,
        unit="fraction of the usable fabric",
        formula=(
            "sum over layers of max(cores for its work, cores for its memory) / usable cores, at most 1; cores for all work = "
            "utilization * usable cores of the published compile * operations in products a sample / those of the published "
            "compile, a layer's in proportion to its work; cores for memory = bytes / bytes a core"
        ),
        inputs={
            "product_flops_per_sample": products,
            "cores_for_work": wanted_cores(products),
            "cores_for_memory": shares.least,
            "cores": shares.total,
            "cores_of_rectangles": sum(rectangle.area for rectangle in rectangles),
            "usable_cores": available,
            **_published(),
        },
        interval=(min(value, max(shares.least / available, value / factor)), min(1.0, value * factor)),
        interval_from=(
            f"one published compile: a factor of {_SPREAD:g} there, and as much again for each power of ten of work away from it "
            f"({decades:.2f}); never below what memory takes nor above the whole fabric"
        ),
        sources=(SOURCE,),
    )


def estimate_cycles(products: float, wanted: float, shares: Shares) -> Estimate:
    """`wanted` are the cores that the work would take at the published compile's work a core."""
    ratio = max(1.0, shares.crowding)
    return Estimate(
        value=round(FC_MNIST.cycles * math.sqrt(ratio)),
        unit="cycles a sample, with the pipeline full",
        formula=(
            "cycles of the published compile * sqrt(max(1, work a core / that of the published compile)): the geometric mean of "
            "two limits, cycles that do not grow with the work of a core and cycles that grow with all of it"
        ),
        inputs={
            "product_flops_per_sample": products,
            "cores_for_work": wanted,
            "cores": shares.total,
            "work_per_core_ratio": ratio,
            **_published(),
        },
        interval=(math.floor(FC_MNIST.cycles / _SPREAD), math.ceil(FC_MNIST.cycles * ratio * _SPREAD)),
        interval_from=(
            f"the two limits, {FC_MNIST.cycles:g} cycles whatever a core has to do and {FC_MNIST.cycles:g} cycles times the work "
            f"of a core, and a factor of {_SPREAD:g} for the published compile itself"
        ),
        sources=(SOURCE,),
    )


def _published() -> Mapping[str, Any]:
    return {
        "published": {
            "network": "-".join(map(str, FC_MNIST.layers)),
            "total_utilization": FC_MNIST.utilization,
            "estimated_deltat": FC_MNIST.cycles,
            "product_flops_per_sample": FC_MNIST.products,
        }
    }
