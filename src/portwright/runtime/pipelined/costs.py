"""Work of each call, as the planner counts it: floating point operations, and bytes moved at the device's balance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# Operations that a device does in the time in which it moves one byte: one core of a server CPU at about 40 GFLOP/s and
# 10 GB/s; an H100 or H200 at about 400 TFLOP/s (bf16, dense) and 4 TB/s.
_OPERATIONS_A_BYTE = {"cpu": 4.0, "cuda": 100.0}


class Costs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds the work of every op to `work`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = 0.0
        self._per_byte = _OPERATIONS_A_BYTE.get(device.type, 100.0)
        self._is_paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._is_paused or func.is_view:
            return result
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.work += float(count(*args, **kwargs, out_val=result))
        moved = 0
        for item in (*args, *(result if isinstance(result, tuple | list) else (result,))):
            if isinstance(item, torch.Tensor):
                moved += item.numel() * item.element_size()
        self.work += self._per_byte * moved
        return result
