"""An NVIDIA or AMD GPU, through torch; several processes talk by nccl."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from portwright.errors import UnsupportedError
from portwright.target import Backend, Target


def why_not() -> str | None:
    import torch

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


TARGET = Target(
    name="GPU",
    summary="one GPU a process, through torch",
    make_backend=make_backend,
    why_not=why_not,
    preference=2,
)
