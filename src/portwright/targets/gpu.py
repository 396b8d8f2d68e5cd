"""An NVIDIA or AMD GPU, through torch; several processes communicate by nccl."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from portwright.errors import UnsupportedError
from portwright.extras import missing
from portwright.needs import TENSORFLOW_2
from portwright.target import Backend, ExecutionMode, Hardware, Target

_MODES: tuple[ExecutionMode, ...] = ("resident", "layer_pipelined", "weight_streaming")


def why_not() -> str | None:
    try:
        import torch
    except ModuleNotFoundError:
        return str(missing("torch", "a GPU"))

    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is a CPU build. Install a CUDA or ROCm build of torch, or use CPU."
    return "torch sees no GPU. Check nvidia-smi and CUDA_VISIBLE_DEVICES, or use CPU."


def make_backend(flags: Mapping[str, Any], note: Callable[[str], None]) -> Backend:
    from portwright.runtime.backend import TorchBackend

    reason = why_not()
    if reason is not None:
        raise UnsupportedError("the target GPU cannot run here:", reason)
    return TorchBackend("cuda", flags, note)


def hardware() -> Hardware:
    """The first GPU that torch sees; without a GPU memory is 0 (not known), and plans do not say what fits."""
    import torch

    from portwright.runtime.streaming.host_memory import read_host_memory

    host = read_host_memory().limit_bytes
    if not torch.cuda.is_available():
        return Hardware(
            name="a GPU",
            memory_bytes=0,
            modes=_MODES,
            streaming_bytes=host,
            sources={"streaming_bytes": "the operating system (this machine's memory)"},
        )
    device = torch.cuda.get_device_properties(0)
    return Hardware(
        name=device.name,
        memory_bytes=device.total_memory,
        modes=_MODES,
        num_cores=device.multi_processor_count,
        streaming_bytes=host,
        sources={
            "memory_bytes": "the device",
            "num_cores": "the device (multiprocessors)",
            "streaming_bytes": "the operating system (this machine's memory)",
        },
    )


TARGET = Target(
    name="GPU",
    summary="one GPU a process, through torch",
    make_backend=make_backend,
    why_not=why_not,
    hardware=hardware,
    executions=("resident", "pipelined", "streaming"),
    tensorflow_device="GPU",
    torch_device="cuda",
    device_types=("cuda", "xpu", "mps"),
    needs={"tensorflow_2": TENSORFLOW_2},
    aliases=("cuda", "nvidia", "rocm", "amd"),
    preference=2,
)
