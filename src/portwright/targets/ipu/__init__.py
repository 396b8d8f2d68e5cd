"""Graphcore IPUs, through PopTorch, or emulated on a CPU (`--emulate`).

Nothing here imports PopTorch or torch, so that the target is listed wherever Portwright runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portwright.errors import UnsupportedError
from portwright.needs import read_answers
from portwright.target import Backend, Hardware, Target
from portwright.targets.emulated import EMULATE, explain_missing
from portwright.targets.ipu.section import IpuSection

if TYPE_CHECKING:
    from portwright.graph.kernels import KernelTable

_DATASHEET = "Graphcore Bow-2000 datasheet"


def why_not() -> str | None:
    origin = "it comes with Graphcore's Poplar SDK 3.4, and its sources are github.com/graphcore/poptorch (sdk-release-3.4)"
    return explain_missing("PopTorch", "poptorch", origin, "ipu")


def make_backend(flags: Mapping[str, Any], note: Callable[[str], None]) -> Backend:
    from portwright.targets.ipu.session import IpuBackend

    reason = None if flags.get(EMULATE.dest) else why_not()
    if reason is not None:
        raise UnsupportedError("the target IPU cannot run here:", reason)
    return IpuBackend(flags, note)


def kernels() -> KernelTable:
    from portwright.targets.ipu.kernels import table

    return table()


def hardware() -> Hardware:
    """One Bow-2000: four IPUs of 1,472 tiles and 900 MB each."""
    return Hardware(
        name="Bow-2000 (4 IPUs)",
        memory_bytes=3_600_000_000,
        modes=("layer_pipelined", "weight_streaming"),
        num_cores=5_888,
        core_memory_bytes=624_000,
        streaming_bytes=256_000_000_000,
        flops_per_second=1.4e15,
        num_chips=4,
        sources={
            "memory_bytes": f"{_DATASHEET}: 3.6 GB in-processor memory, so 900 MB an IPU",
            "num_cores": f"{_DATASHEET}: 5,888 tiles, so 1,472 an IPU",
            "core_memory_bytes": "about 624 KB a tile, derived from memory and tiles of an IPU",
            "streaming_bytes": f"{_DATASHEET}: up to 256 GB of streaming memory",
            "flops_per_second": f"{_DATASHEET}: 1.4 PFLOP/s in FP16",
            "num_chips": _DATASHEET,
            "modes": "PopTorch 3.4 user guide: pipelined and phased execution",
        },
    )


_HERE = Path(__file__).parent
TARGET = Target(
    name="IPU",
    summary="a Graphcore IPU system, through PopTorch or emulated",
    aliases=("graphcore", "poptorch", "bow", "bowpod", "mk2"),
    package="poptorch",
    make_backend=make_backend,
    needs=read_answers(_HERE.parent / "compiled.tsv", _HERE / "needs.tsv"),
    why_not=why_not,
    kernels=kernels,
    hardware=hardware,
    sections={"ipu": IpuSection},
    flags=(EMULATE,),
    emulator="poptorch",
    has_compiler=True,
)
