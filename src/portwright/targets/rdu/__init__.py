"""SambaNova RDUs: what a model would need there, as far as public documents say; running on them is not here yet."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from portwright.errors import UnsupportedError
from portwright.target import Hardware, Target

if TYPE_CHECKING:
    from portwright.graph.kernels import KernelTable

_MEANWHILE = "portwright plan --target rdu works without it."
_SLIDES = "SambaNova SN40L, Hot Chips 2024 slides"


def why_not() -> str:
    if importlib.util.find_spec("sambaflow") is not None:
        return f"SambaFlow is installed, but this release does not run on RDUs yet; {_MEANWHILE}"
    return (
        "SambaFlow is not installed, and this release does not run on RDUs yet. No public package index has it: it comes "
        f"installed on SambaNova's systems. {_MEANWHILE}"
    )


def make_backend(flags: Mapping[str, Any], note: Callable[[str], None]) -> NoReturn:
    raise UnsupportedError("the target RDU cannot run here:", why_not())


def kernels() -> KernelTable:
    from portwright.targets.rdu.kernels import table

    return table()


def hardware() -> Hardware:
    """One SN40L socket; of the SN30 only 8 RDUs a node and 8 tiles an RDU are public, which no plan can be made of."""
    return Hardware(
        name="SN40L",
        memory_bytes=64_000_000_000,
        modes=("resident",),
        num_cores=1_040,
        streaming_bytes=1_500_000_000_000,
        flops_per_second=638e12,
        sources={
            "memory_bytes": f"{_SLIDES}: 64 GB of HBM (and 520 MB on the chip)",
            "num_cores": f"{_SLIDES}: 1,040 pattern compute units",
            "streaming_bytes": f"{_SLIDES}: 1.5 TB of DDR",
            "flops_per_second": f"{_SLIDES}: 638 TFLOP/s in BF16",
            "modes": "SambaFlow documentation: a compiled graph (PEF) holds the whole step",
        },
    )


TARGET = Target(
    name="RDU",
    summary="a SambaNova RDU system, to plan for",
    make_backend=make_backend,
    why_not=why_not,
    kernels=kernels,
    hardware=hardware,
)
