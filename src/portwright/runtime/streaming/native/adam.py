"""Adam on flat CPU tensors in one pass over memory, in C and on several threads."""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from portwright.errors import UnsupportedError, UserError
from portwright.runtime.streaming.native.build import BuildError, load_library

# As in adam.c.
_DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_NO_ARRAY = 3
_COUPLED, _DECOUPLED = 1, 2  # weight decay
# Below this the caches hold what is written until it is read again, and writing past them would only lose it.
_STREAM_FROM_BYTES = 4 << 20
# What is left of a tensor after vectors of eight goes through another loop of torch's: the same under AVX2 and AVX-512, torch 2.4 and 2.13.
_TORCH_LANES = 8
_OFF = ("0", "off", "no", "false")
_ON = ("", "1", "on", "yes", "true")


class _AdamCall(ctypes.Structure):
    """`struct adam`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("grad", "weight", "exp_avg", "exp_avg_sq")),
        *((name, ctypes.c_void_p) for name in ("weight_out", "exp_avg_out", "exp_avg_sq_out", "half_out")),
        *((name, ctypes.c_int64) for name in ("n", "num_tail")),
        *((name, ctypes.c_int32) for name in ("grad_dtype", "moment_dtype", "half_dtype")),
        *((name, ctypes.c_int32) for name in ("stream_half", "stream_state", "decay")),
        ("salt", ctypes.c_uint32),
        *((name, ctypes.c_float) for name in ("grad_factor", "decay_factor", "lerp_weight", "beta2")),
        *((name, ctypes.c_float) for name in ("one_minus_beta2", "bias_correction2_sqrt", "eps", "negative_step_size")),
    )  # fmt: skip


_loaded: list[ctypes.CDLL] = []
_loading = threading.Lock()


def _process_library(note: Callable[[str], None]) -> ctypes.CDLL:
    """The library, loaded once a process, since its threads belong to the process."""
    with _loading:
        if not _loaded:
            library = load_library(ctypes.sizeof(_AdamCall), note)
            library.portwright_adam_step.argtypes = (ctypes.POINTER(_AdamCall), ctypes.c_int)
            library.portwright_adam_step.restype = None
            library.portwright_bind.argtypes = (ctypes.POINTER(ctypes.c_int32), ctypes.c_int)
            _loaded.append(library)
        return _loaded[0]


def load_native(note: Callable[[str], None]) -> NativeAdam | None:
    """The native Adam of this process, compiled at first use; None and one note where there is none.

    PORTWRIGHT_NATIVE=0 turns it off.
    """
    wanted = os.environ.get("PORTWRIGHT_NATIVE", "").strip().lower()
    if wanted in _OFF:
        note(f"PORTWRIGHT_NATIVE={wanted}: torch's own optimizer kernels are used.")
        return None
    if wanted not in _ON:
        raise UserError(f"PORTWRIGHT_NATIVE={wanted} is neither on nor off.", "Set it to 0 or 1.")
    if os.name != "posix":
        note(
            f"The native optimizer needs a POSIX system, not {os.name}: torch's own, slower kernels are used."
        )
        return None
    try:
        return NativeAdam(_process_library(note))
    except BuildError as error:
        note(f"The native optimizer was not compiled: {error}. Torch's own, slower kernels are used.")
        return None


def usable_cores() -> list[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def default_threads() -> int:
    """As many as torch uses; where several processes share the machine, this one's share of its cores.

    A launcher of several processes sets OMP_NUM_THREADS to 1, which would leave the optimizer one core.
    """
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    num_processes = int(told) if told.isdecimal() else 1
    if num_processes > 1:
        return max(1, len(usable_cores()) // num_processes)
    return torch.get_num_threads()


class NativeAdam:
    """Adam on flat contiguous CPU tensors of one length, at any alignment.

    Calls drop the GIL, and calls of several threads run one after the other on the same pool of threads. What is computed
    does not depend on their number. A forked child makes a pool of its own at its first call.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def step(
        self,
        *,
        weight: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        weight_out: Tensor,
        exp_avg_out: Tensor,
        exp_avg_sq_out: Tensor,
        grad: Tensor,
        half_out: Tensor | None,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        decoupled: bool,
        step: int,
        grad_factor: float = 1.0,
        num_threads: int | None = None,
    ) -> None:
        """One step of Adam, or of AdamW where `decoupled`, bit for bit as torch's fused kernel; `step` counts from 1.

        Outputs are the inputs themselves (in place) or lie apart from them; the caller sees to it. `half_out` takes the new
        weight in its own dtype. `grad_factor` multiplies the gradient first. Moments in bf16 are rounded stochastically, by
        bits drawn from the element itself and `step`: nearest would hold exp_avg_sq where it is, since it changes by a
        thousandth. `num_threads` None is `default_threads()`.
        """
        numbers = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "grad_factor": grad_factor}
        wrong = [f"{name}={value}" for name, value in numbers.items() if not math.isfinite(value)]
        if wrong:
            raise UserError(
                f"{', '.join(wrong)}: not a finite number.", "Hold the step back, or pass a finite one."
            )
        if decoupled or not weight_decay:  # a weight times 1 is itself
            decay, decay_factor = _DECOUPLED, 1 - lr * weight_decay
        else:
            decay, decay_factor = _COUPLED, weight_decay
        call = _AdamCall(
            grad.data_ptr(),
            weight.data_ptr(),
            exp_avg.data_ptr(),
            exp_avg_sq.data_ptr(),
            weight_out.data_ptr(),
            exp_avg_out.data_ptr(),
            exp_avg_sq_out.data_ptr(),
            None if half_out is None else half_out.data_ptr(),
            n=grad.numel(),
            num_tail=grad.numel() % _TORCH_LANES,
            grad_dtype=_DTYPE_CODES[grad.dtype],
            moment_dtype=_DTYPE_CODES[exp_avg.dtype],
            half_dtype=_NO_ARRAY if half_out is None else _DTYPE_CODES[half_out.dtype],
            stream_half=half_out is not None and half_out.nbytes >= _STREAM_FROM_BYTES,
            stream_state=weight.data_ptr() != weight_out.data_ptr()
            and weight_out.nbytes >= _STREAM_FROM_BYTES,
            # Worked out in double, as torch does.
            decay=decay,
            decay_factor=decay_factor,
            grad_factor=grad_factor,
            lerp_weight=1 - beta1,
            beta2=beta2,
            one_minus_beta2=1 - beta2,
            bias_correction2_sqrt=(1 - beta2**step) ** 0.5,
            eps=eps,
            negative_step_size=-(lr / (1 - beta1**step)),
            salt=(step * 0x9E3779B1) & 0xFFFFFFFF,
        )
        threads = default_threads() if num_threads is None else num_threads
        self._library.portwright_adam_step(ctypes.byref(call), threads)

    def bind_threads(self, cores: Sequence[int]) -> None:
        """Keeps thread i on core i of the list from now on, the calling thread excepted; an empty list frees them again."""
        num_failed = self._library.portwright_bind((ctypes.c_int32 * len(cores))(*cores), len(cores))
        if num_failed:
            raise UnsupportedError(f"The system refused to bind {num_failed} threads to cores {list(cores)}")
