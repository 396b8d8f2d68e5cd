"""Contestants of benchmarks/streaming.py that torch has itself: all resident, and FSDP2 with its CPU offload."""

from __future__ import annotations

import os
from typing import Any

import torch
from streaming_gpt import ADAMW, Shape, fill_weights, group_weights, make_empty
from torch import Tensor


class Resident:
    """The plain loop: fp32 weights and a fused AdamW on the device, bf16 by autocast."""

    def __init__(self, shape: Shape, device: str, options: dict[str, Any]) -> None:
        self._device = device
        self._net = make_empty(shape, device, recompute="plain")
        fill_weights(self._net.named_parameters(), shape, device)
        self._optimizer = torch.optim.AdamW(group_weights(self._net), fused=True, **ADAMW)

    def step(self, ids: Tensor, labels: Tensor) -> Tensor:
        # Each weight is used once a pass: remembering its bf16 copy would only take memory.
        with torch.autocast(
            self._device, torch.bfloat16, enabled=self._device == "cuda", cache_enabled=False
        ):
            loss: Tensor = self._net(ids, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def settle(self) -> None:
        pass

    def close(self) -> dict[str, Any]:
        return {}


class Sharded:
    """fully_shard of every block and of the whole, in a world of one; a fused AdamW on the CPU."""

    def __init__(self, shape: Shape, device: str, options: dict[str, Any]) -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ["MASTER_PORT"] = str(options["port"])
        if device == "cuda":
            torch.cuda.set_device(0)
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, rank=0, world_size=1)
        settings: dict[str, Any] = {"mesh": init_device_mesh(device, (1,))}
        if device == "cuda":
            settings["offload_policy"] = CPUOffloadPolicy(pin_memory=True)
            settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        self._net = make_empty(shape, "cpu", recompute="plain")
        for block in self._net.blocks:
            fully_shard(block, **settings)
        fully_shard(self._net, **settings)
        named = [(name, weight.to_local()) for name, weight in self._net.named_parameters()]  # type: ignore[attr-defined]
        fill_weights(named, shape, device)
        self._optimizer = torch.optim.AdamW(group_weights(self._net), fused=True, **ADAMW)

    def step(self, ids: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self._net(ids, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def settle(self) -> None:
        pass

    def close(self) -> dict[str, Any]:
        torch.distributed.destroy_process_group()
        return {}
