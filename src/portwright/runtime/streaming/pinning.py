"""Host memory that the GPU copies from and to by itself: registered with CUDA page by page while a budget lasts."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import torch

from portwright.job.sizes import show_bytes


class Pinner(Protocol):
    """Registers memory that is already there."""

    def pin(self, address: int, num_bytes: int) -> str | None:
        """None when it worked, else the reason."""
        ...

    def unpin(self, address: int) -> str | None: ...

    def finish(self) -> None:
        """Waits for copies under way, before memory is unregistered."""
        ...


class CudaPinner:
    """cudaHostRegister; `cudart` is torch's binding of the CUDA runtime unless a test brings its own."""

    def __init__(self, device: torch.device, cudart: Any = None) -> None:
        self._device = device
        self._is_real = cudart is None
        self._cudart = torch.cuda.cudart() if cudart is None else cudart  # type: ignore[no-untyped-call]

    def pin(self, address: int, num_bytes: int) -> str | None:
        portable = 1  # cudaHostRegisterPortable: for every device of the process
        return self._reason(self._cudart.cudaHostRegister(address, num_bytes, portable))

    def unpin(self, address: int) -> str | None:
        return self._reason(self._cudart.cudaHostUnregister(address))

    def finish(self) -> None:
        if self._is_real:
            # A failed device has no copies under way, and its error was raised where it was used.
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize(self._device)

    def _reason(self, status: Any) -> str | None:
        code = int(status)
        if code == 0:
            return None
        if self._is_real:
            # CUDA remembers the failure and torch would raise it at the next kernel launch, whatever that is: take it
            # off here, with a launch of our own. An error that broke the device comes back at the next call anyway.
            with contextlib.suppress(RuntimeError):
                torch.empty(1, device=self._device).fill_(1)
        text = getattr(self._cudart, "cudaGetErrorString", lambda status: "")(status)
        return f"{text} (CUDA error {code})" if text else f"CUDA error {code}"


def explain_refusal(num_bytes: int, reason: str, pinned_bytes: int) -> str:
    """The line for the log, with the limit of locked memory where there is one."""
    limit = _locked_limit()
    ulimit = (
        f"; this process may lock {show_bytes(limit)} (raise it with `ulimit -l unlimited`, or memlock in the container)"
        if limit is not None
        else ""
    )
    return (
        f"pinned memory refused: {show_bytes(num_bytes)} more after {show_bytes(pinned_bytes)}: {reason}{ulimit}. Arrays are "
        "not pinned from here on, which is as correct and slower. runconfig.streaming.pinned_memory sets how much to try."
    )


def _locked_limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft
