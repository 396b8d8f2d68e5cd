"""SambaNova RDUs, through SambaFlow, or emulated on a CPU (`--emulate`).

Nothing here imports SambaFlow or torch, so that the target is listed wherever Portwright runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portwright.errors import UnsupportedError
from portwright.needs import read_answers
from portwright.target import Backend, Flag, Hardware, Target
from portwright.targets.emulated import EMULATE, explain_missing
from portwright.targets.rdu.section import RduSection

if TYPE_CHECKING:
    from portwright.graph.kernels import KernelTable

_SLIDES = "SambaNova SN40L, Hot Chips 2024 slides"


def why_not() -> str | None:
    return explain_missing("SambaFlow", "sambaflow", "it comes installed on SambaNova's systems", "rdu")


def make_backend(flags: Mapping[str, Any], note: Callable[[str], None]) -> Backend:
    from portwright.targets.rdu.session import RduBackend

    reason = None if flags.get(EMULATE.dest) else why_not()
    if reason is not None:
        raise UnsupportedError("the target RDU cannot run here:", reason)
    return RduBackend(flags, note)


def kernels() -> KernelTable:
    from portwright.targets.rdu.kernels import table

    return table()


def hardware() -> Hardware:
    """One SN40L socket; the public figures of the SN30 (8 RDUs a node, 8 tiles an RDU) are too few for a plan."""
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


_HERE = Path(__file__).parent
TARGET = Target(
    name="RDU",
    summary="a SambaNova RDU system, through SambaFlow or emulated",
    aliases=("sambanova", "sambaflow", "sn10", "sn30", "sn40", "sn40l"),
    package="sambaflow",
    make_backend=make_backend,
    needs=read_answers(_HERE.parent / "compiled.tsv", _HERE / "needs.tsv"),
    why_not=why_not,
    kernels=kernels,
    hardware=hardware,
    sections={"rdu": RduSection},
    flags=(
        EMULATE,
        Flag(("--pef",), "a PEF that was compiled before (rdu.pef)"),
        Flag(("--pef-name", "--pef_name"), "name of the PEF to compile (rdu.pef_name)"),
        Flag(("--output-folder", "--output_folder"), "where the PEF's folder goes (default: compile_dir)"),
    ),
    # The words of SambaFlow's scripts; "test" compares one batch with the host.
    commands={
        "compile": ("--mode", "train", "--compile_only"),
        "run": ("--mode", "train"),
        "test": ("--mode", "train", "--validate_only"),
    },
    emulator="sambaflow",
    has_compiler=True,
)
