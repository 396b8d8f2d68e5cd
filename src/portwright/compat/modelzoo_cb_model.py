"""`modelzoo.common.pytorch.cb_model`: what the model zoo's code asks of the device that it runs on.

It is never told of a Cerebras system, whatever the target, since what stands behind that answer are the SDKs of
release 1.6. The data of a run are shared among its processes by Portwright's loader, a part of every batch for each,
so code that asks how many streamers there are learns that it is the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def use_cs() -> bool:
    return False


def is_wse_device() -> bool:
    return False


def is_appliance() -> bool:
    return False


def is_streamer() -> bool:
    return True


def is_receiver() -> bool:
    return True


def is_sync_mode() -> bool:
    return True


def is_master_ordinal(local: bool = False) -> bool:
    return get_ordinal() == 0


def get_ordinal() -> int:
    return torch.distributed.get_rank() if _has_processes() else 0


def get_streaming_rank() -> int:
    return 0


def num_streamers() -> int:
    return 1


def num_receivers() -> int:
    return 1


def num_tasks() -> int:
    return 1


def rendezvous(tag: str, payload: Any = b"", replicas: Sequence[int] = ()) -> list[Any]:
    """Waits for the other processes of the run; gives the payloads of all streamers, of which there is one."""
    if _has_processes():
        torch.distributed.barrier()
    return [payload]


def step_closure(function: _Function) -> _Function:
    """Runs a function when the step is over; here that is at once."""
    return function


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def to_cpu(value: Any) -> Any:
    """Brings the tensors of a tensor, list, tuple or dict to host memory; None stays."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, Mapping):
        return {key: to_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_cpu(item) for item in value)
    raise TypeError(f"expected tensors or a structure of them, got {type(value).__name__}")


def _has_processes() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
