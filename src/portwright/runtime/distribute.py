"""Spreading a model over processes: DDP copies it, FSDP2 shards it; both through torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from portwright.base_model import LossModule
from portwright.errors import UnsupportedError, UserError
from portwright.runtime.shards import DTensor, distribute_tensor
from portwright.runtime.world import World

Strategy = Literal["none", "ddp", "fsdp"]


def choose_strategy(asked: str, world: World) -> Strategy:
    if asked not in ("auto", "ddp", "fsdp", "none"):
        raise UserError(f"runconfig.distributed is '{asked}'.", "Use auto, ddp, fsdp or none.")
    if world.size == 1:
        return "none"
    if asked == "none":
        raise UserError(
            f"runconfig.distributed is 'none', but {world.size} processes were started.",
            "Start one process, or use distributed: ddp or fsdp.",
        )
    return "fsdp" if asked == "fsdp" else "ddp"


def distribute(module: LossModule, strategy: Strategy, world: World, device: torch.device) -> nn.Module:
    """Makes the module that is called in training; weights keep their canonical names in `module.net`."""
    if strategy == "ddp":
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return module
        return DistributedDataParallel(module, device_ids=[device.index] if device.type == "cuda" else None)
    if strategy == "fsdp":
        fully_shard = _fully_shard(device)
        mesh = init_device_mesh(device.type, (world.size,))
        for layer in _layers(module.net):
            fully_shard(layer, mesh=mesh)
        fully_shard(module.net, mesh=mesh)
    return module


def _fully_shard(device: torch.device) -> Callable[..., Any]:
    if device.type == "cpu" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        raise UnsupportedError(
            f"torch {torch.__version__} shards on GPUs only.", "Use distributed: ddp, or torch 2.6 or newer."
        )
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # torch before 2.6
        from torch.distributed._composable.fsdp import fully_shard  # type: ignore[attr-defined]
    return fully_shard


def _layers(net: nn.Module) -> list[nn.Module]:
    """The repeated blocks, each a unit of its own, so that one block at a time is gathered."""
    return [
        child
        for holder in net.modules()
        if isinstance(holder, nn.ModuleList)
        for child in holder
        if any(True for _ in child.parameters())
    ]


def shard_like(tensor: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """A whole tensor, sharded as `own` is."""
    if not isinstance(own, DTensor):
        return tensor
    return distribute_tensor(tensor.to(own.device, own.dtype), own.device_mesh, own.placements)


def sync_batchnorm(net: nn.Module, device: torch.device) -> nn.Module:
    """Batch statistics over all processes."""
    if device.type != "cuda":
        raise UserError("runconfig.sync_batchnorm works on GPUs only.", "Leave it out on the CPU.")
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(net)  # type: ignore[no-untyped-call]
    return converted
