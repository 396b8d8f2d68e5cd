"""Published constants of the CS-2, each with its source; what has no public source is left out."""

from __future__ import annotations

from portwright.target import Hardware

_PSC = "PSC Neocortex system specifications"


def hardware() -> Hardware:
    """The machine that `plan` measures a model against."""
    return Hardware(
        name="CS-2 (WSE-2)",
        memory_bytes=40 * 10**9,
        modes=("layer_pipelined", "weight_streaming"),
        num_cores=850_000,
        core_memory_bytes=48 * 1024,
        fabric=(757, 996),
        io_bytes_per_second=1.2e12 / 8,
        sources={
            "memory_bytes": f"{_PSC}: 40 GB of SRAM on the chip",
            "num_cores": _PSC,
            "core_memory_bytes": "ALCF documentation: 48 KB a core",
            "fabric": "PSC Neocortex SDK commands: 757 x 996 usable cores",
            "io_bytes_per_second": f"{_PSC}: 1.2 Tb/s of system I/O",
            "modes": "PSC Neocortex, Developing for the CS-2: execution modes",
        },
    )
