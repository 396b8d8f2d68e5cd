"""An Intel Gaudi (Habana) accelerator, through the vendor's own torch; several processes talk by hccl.

No kernel table and no constants: what torch runs there is for the vendor's software to say.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from portwright.errors import UnsupportedError, UserError
from portwright.target import Backend, Target

if TYPE_CHECKING:
    import torch

    from portwright.runtime.world import Launch

_PACKAGE = "habana_frameworks"
_CURE = (
    "Run inside Intel's PyTorch container for Gaudi, or install Intel's package habana-torch-plugin together with "
    "the torch made for it, as docs.habana.ai's Installation Guide says; or use CPU."
)


def why_not() -> str | None:
    if find_spec(_PACKAGE) is None:
        return f"{_PACKAGE} is not installed. {_CURE}"
    try:
        hpu = _import("torch.hpu")
    except Exception as error:  # whatever a torch that it was not made for, or a missing driver, makes of it
        said = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":. ")
        return f"{_PACKAGE} is installed, and does not load ({said}). {_CURE}"
    if not hpu.is_available():
        return f"{_PACKAGE} sees no Gaudi. Check hl-smi and HABANA_VISIBLE_DEVICES, or use CPU."
    return None


def make_backend(flags: Mapping[str, Any], note: Callable[[str], None]) -> Backend:
    from portwright.runtime.backend import TorchBackend
    from portwright.runtime.plugin import Plugin

    reason = why_not()
    if reason is not None:
        raise UnsupportedError("the target HPU cannot run here:", reason)
    plugin = Plugin(
        take_device=take_device,
        collectives="hccl",
        mark_step=_import("torch.core").mark_step,
        compiler="hpu_backend",
    )
    return TorchBackend("hpu", flags, note, plugin)


def take_device(launch: Launch) -> torch.device:
    """The Gaudi of this process: the vendor's software goes by LOCAL_RANK, so the device has no number of ours."""
    import torch

    hpu = _import("torch.hpu")
    num_devices = hpu.device_count()
    if launch.local_world_size > 1 and launch.local_rank >= num_devices:
        raise UserError(
            f"process {launch.local_rank} of this machine has no Gaudi: {num_devices} can be seen.",
            f"Start at most {num_devices} processes a machine.",
        )
    if launch.world_size > 1:
        _import("torch.distributed.hccl").initialize_distributed_hpu(
            world_size=launch.world_size, rank=launch.rank, local_rank=launch.local_rank
        )
    return torch.device("hpu")


def _import(name: str) -> ModuleType:
    """A module of the vendor's; its core goes first, since that is what makes torch know the device."""
    importlib.import_module(f"{_PACKAGE}.torch.core")
    return importlib.import_module(f"{_PACKAGE}.{name}")


TARGET = Target(
    name="HPU",
    summary="one Intel Gaudi a process, through habana_frameworks",
    make_backend=make_backend,
    why_not=why_not,
)
