"""DeepSpeed's ZeRO-3 with weights and optimizer offloaded, a contestant of benchmarks/streaming.py."""

from __future__ import annotations

import os
from typing import Any

import torch
from streaming_gpt import ADAMW, Shape, fill_weights, group_weights, make_empty
from torch import Tensor


class Zero3:
    """Recomputes in the reentrant way: ZeRO-3 takes the weights away between forward and backward."""

    def __init__(self, shape: Shape, device: str, options: dict[str, Any]) -> None:
        os.environ.update(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(options["port"]),
            RANK="0",
            LOCAL_RANK="0",
            WORLD_SIZE="1",
        )
        import deepspeed  # type: ignore[import-not-found]

        net = make_empty(shape, "cpu", recompute="reentrant")
        fill_weights(net.named_parameters(), shape, device)
        pins = device == "cuda"
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": device == "cuda"},
            "optimizer": {"type": "AdamW", "params": ADAMW},
            "zero_optimization": {
                "stage": 3,
                "offload_param": {"device": "cpu", "pin_memory": pins},
                "offload_optimizer": {"device": "cpu", "pin_memory": pins},
                "overlap_comm": True,
                "contiguous_gradients": True,
                "stage3_prefetch_bucket_size": 12 * shape.width**2,
                "stage3_max_live_parameters": 48 * shape.width**2,
                "stage3_param_persistence_threshold": 4 * shape.width,
            },
        }
        self._engine, *_ = deepspeed.initialize(model=net, model_parameters=group_weights(net), config=config)

    def step(self, ids: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self._engine(ids, labels)
        self._engine.backward(loss)
        self._engine.step()
        return loss.detach()

    def settle(self) -> None:
        pass

    def close(self) -> dict[str, Any]:
        import deepspeed

        torch.distributed.destroy_process_group()
        return {"deepspeed": deepspeed.__version__}
