"""Cerebras CS systems, through the vendor's SDK (`cerebras.pytorch`), which has an environment of its own.

Nothing here imports the SDK or torch, so that the target is listed wherever Portwright runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from portwright.job.vendor_env import explain_missing, find_usable
from portwright.needs import read_answers
from portwright.target import Backend, Flag, Hardware, Target
from portwright.targets.csx.cluster import ENVIRONMENT

if TYPE_CHECKING:
    from portwright.graph.kernels import KernelTable


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


class ForeignSection(BaseModel):
    """A section of the model zoo's that the SDK itself checks."""

    model_config = ConfigDict(extra="allow")


def why_not() -> str | None:
    if find_usable(ENVIRONMENT) is not None:
        return None
    reason = explain_missing(ENVIRONMENT) or "the Cerebras SDK is not installed here."
    return f"{reason} {ENVIRONMENT.cure}"


def make_backend(flags: Mapping[str, Any], note: Callable[[str], None]) -> Backend:
    from portwright.targets.csx.backend import CsxBackend

    return CsxBackend(flags, note)


def kernels() -> KernelTable:
    from portwright.targets.csx.kernels import table

    return table()


_HERE = Path(__file__).parent
TARGET = Target(
    name="CSX",
    summary="a Cerebras CS system, through the vendor's SDK",
    aliases=("cerebras", "cs", "cs1", "cs2", "cs3", "wse", "wse1", "wse2", "wse3"),
    package="cerebras",
    no_tensorflow="today's SDK of Cerebras has no TensorFlow",
    make_backend=make_backend,
    needs=read_answers(_HERE.parent / "compiled.tsv", _HERE / "needs.tsv"),
    why_not=why_not,
    environment=ENVIRONMENT,
    has_cluster=True,
    execution_note="Cerebras's SDK 2 streams weights to the wafer, always",
    kernels=kernels,
    hardware=hardware,
    sections={"csconfig": ForeignSection, "sparsity": ForeignSection},
    flags=(
        Flag(
            ("--on_cpu", "--on-cpu"),
            "run through the SDK's own CPU backend",
            is_switch=True,
            runs_on_host=True,
        ),
        Flag(
            ("--legalise", "--legalize"),
            "swap layers that the SDK refuses for equal ones that it accepts",
            is_switch=True,
        ),
        Flag(("-cs", "--cs_ip"), "address of the CS system; without a target it means CSX", chooses=True),
        Flag(("--num_csx",), "number of CS systems"),
        Flag(("--num_wgt_servers",), "number of weight servers"),
        Flag(("--num_workers_per_csx",), "input workers for each CS system"),
        Flag(("--mount_dirs",), "folders that the workers mount", is_list=True),
        Flag(("--python_paths",), "folders added to the workers' PYTHONPATH", is_list=True),
        Flag(("--job_labels",), "labels of the cluster job, key=value", is_list=True),
        Flag(("--job_time_sec",), "time limit of the cluster job in seconds"),
        Flag(("--credentials_path",), "the cluster's certificate"),
        Flag(("--mgmt_address",), "the cluster's address, host:port"),
        Flag(("--mgmt_namespace",), "the cluster's namespace"),
    ),
)
