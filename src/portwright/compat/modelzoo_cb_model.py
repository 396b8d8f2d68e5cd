"""`modelzoo.common.pytorch.cb_model`: the functions by which the model zoo's code asks about its device.

The answer is never a Cerebras system, whatever the target: code that expects one would use the SDKs of release 1.6.
Portwright's loader gives each process of a run a part of every batch, so the number of streamers is always one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _always(answer: Any) -> Callable[[], Any]:
    return lambda: answer


use_cs = is_wse_device = is_appliance = _always(False)
is_streamer = is_receiver = is_sync_mode = _always(True)
get_streaming_rank = _always(0)
num_streamers = num_receivers = num_tasks = _always(1)


def is_master_ordinal(local: bool = False) -> bool:
    return get_ordinal() == 0


def get_ordinal() -> int:
    return torch.distributed.get_rank() if _has_processes() else 0


def rendezvous(tag: str, payload: Any = b"", replicas: Sequence[int] = ()) -> list[Any]:
    """Waits for the other processes of the run; gives the payloads of all streamers, of which there is one."""
    if _has_processes():
        torch.distributed.barrier()
    return [payload]


def step_closure(function: _Function) -> _Function:
    """Runs a function after the step; here it runs at once."""
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


class modes:
    """Names of the modes."""

    TRAIN = "train"
    EVAL = "eval"
    TRAIN_AND_EVAL = "train_and_eval"
    INFERENCE = "inference"

    @staticmethod
    def get_modes() -> tuple[str, ...]:
        return modes.TRAIN, modes.EVAL, modes.TRAIN_AND_EVAL, modes.INFERENCE

    @staticmethod
    def is_valid(mode: str) -> bool:
        return mode in modes.get_modes()


class StripPadding(nn.Module):
    """Tells a wafer which positions are padding and need no work (`enable_vts`); the values are the same."""

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        return values


cbtorch: Any = SimpleNamespace(nn=SimpleNamespace(StripPadding=StripPadding))
amp: Any = SimpleNamespace(get_init_params=dict)
AP_DISABLED = None


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Does nothing; it names a part of the graph for Cerebras's compiler."""
    yield None
