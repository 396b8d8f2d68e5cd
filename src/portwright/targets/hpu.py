"""An Intel Gaudi (Habana) accelerator, through the vendor's own torch; several processes communicate by hccl.

It has no kernel table and no constants: only the vendor's software knows which ops run there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from portwright.errors import UnsupportedError, UserError
from portwright.needs import Answer
from portwright.target import Backend, Target

if TYPE_CHECKING:
    import torch

    from portwright.runtime.world import Launch

_PACKAGE = "habana_frameworks"
_GUIDE = "docs.habana.ai"
_CURE = (
    "Run inside Intel's PyTorch container for Gaudi, or install Intel's package habana-torch-plugin together with "
    "the torch made for it, as docs.habana.ai's Installation Guide says; or use CPU."
)


def why_not() -> str | None:
    if find_spec(_PACKAGE) is None:
        return f"{_PACKAGE} is not installed. {_CURE}"
    try:
        hpu = _import("torch.hpu")
    except Exception as error:  # another release of torch or a missing driver may raise anything
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
    """This process's Gaudi, without a number: the vendor's software selects it by LOCAL_RANK."""
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
    """Imports a module of the vendor's after its core, which registers the device in torch."""
    importlib.import_module(f"{_PACKAGE}.torch.core")
    return importlib.import_module(f"{_PACKAGE}.{name}")


TARGET = Target(
    name="HPU",
    summary="one Intel Gaudi a process, through habana_frameworks",
    aliases=("habana", "gaudi", "gaudi2", "gaudi3"),
    package="habana_frameworks",
    make_backend=make_backend,
    why_not=why_not,
    device_types=("hpu",),
    needs={  # only runs ask for these: how Gaudi's software treats scripts is not known
        "no_float16_training": Answer("refused", "Gaudi trains in bfloat16 or float32", _GUIDE),
        "no_float64_training": Answer("refused", "Gaudi has no double precision to train in", _GUIDE),
        "no_wide_sums": Answer("changes_results", "neither int64 nor float64 can be trusted there", _GUIDE),
    },
)
