"""Adam on flat CPU tensors in one pass over memory, in C and on several threads."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from portwright.errors import UnsupportedError, UserError
from portwright.runtime.streaming.native.build import BuildError
from portwright.runtime.streaming.native.checks import check_arrays, check_hyperparameters, check_memory
from portwright.runtime.streaming.native.library import (
    COUPLED,
    DECOUPLED,
    DTYPE_CODES,
    MAX_THREADS,
    NO_ARRAY,
    PLAIN,
    AdamCall,
    ConvertCall,
    process_library,
)

_FP32 = (torch.float32,)
_MOMENTS = (torch.float32, torch.bfloat16)
# Below this the caches hold what is written until it is read again, and writing past them would only lose it.
_STREAM_FROM_BYTES = 4 << 20
# What is left of a tensor after vectors of eight goes through another loop of torch's: the same under AVX2 and AVX-512, torch 2.4 and 2.13.
_TORCH_LANES = 8
_OFF = ("0", "off", "no", "false")
_ON = ("", "1", "on", "yes", "true")


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
        return NativeAdam(process_library(note))
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


def torch_tail(length: int) -> int:
    """How many elements at the end of a tensor torch's fused CPU kernel computes one by one, for `step`'s `num_tail`."""
    return length % _TORCH_LANES


class NativeAdam:
    """Elementwise work on flat contiguous CPU tensors of one length, at any alignment.

    Calls drop the GIL, and calls of several threads run one after the other on the same pool of threads. What is computed
    does not depend on their number. A forked child makes a pool of its own at its first call. `num_threads` None is
    `default_threads()`. `stream` says whether outputs that are not inputs too go past the caches; None decides by size.
    """

    num_ahead = 0  # blocks of 512 elements by which memory is asked for early: no gain on one core (benchmarks/native_adam.py)

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
        stream: bool | None = None,
        num_tail: int | None = None,
        want_squares: bool = False,
    ) -> float | None:
        """One step of Adam, or of AdamW where `decoupled`, bit for bit as torch's fused kernel; `step` counts from 1.

        Outputs are the inputs themselves (in place) or lie apart from them. `half_out` takes the new weight in its own
        dtype. `grad_factor` multiplies the gradient first. Moments in bf16 are rounded stochastically, by bits drawn from
        the element itself and `step`: nearest would hold exp_avg_sq where it is, since it changes by a thousandth.

        The last `num_tail` elements are computed as torch does at the end of a tensor, a last place apart; None takes the
        arrays for one tensor (`torch_tail`). `want_squares` gives what `sum_squares(grad)` would, without reading the
        gradient from memory again.
        """
        arrays = {
            "weight": weight, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "grad": grad,
            "weight_out": weight_out, "exp_avg_out": exp_avg_out, "exp_avg_sq_out": exp_avg_sq_out,
        }  # fmt: skip
        if half_out is not None:
            arrays["half_out"] = half_out
        n = check_arrays(arrays, {"weight": _FP32, "weight_out": _FP32, **_moment_dtypes(exp_avg)})
        call = AdamCall(
            **{name: array.data_ptr() for name, array in arrays.items()},
            n=n,
            num_tail=_tail(num_tail, n),
            wants_squares=want_squares,
            num_ahead=self.num_ahead,
            grad_dtype=DTYPE_CODES[grad.dtype],
            moment_dtype=DTYPE_CODES[exp_avg.dtype],
            half_dtype=NO_ARRAY if half_out is None else DTYPE_CODES[half_out.dtype],
            stream_half=half_out is not None and _should_stream(stream, half_out),
            stream_state=weight.data_ptr() != weight_out.data_ptr() and _should_stream(stream, weight_out),
            **_scalars(lr, beta1, beta2, eps, weight_decay, decoupled, step, grad_factor),
        )
        total = self._library.portwright_adam_step(ctypes.byref(call), _threads(num_threads))
        return _squares(total) if want_squares else None

    def add(self, accumulator: Tensor, grad: Tensor, num_threads: int | None = None) -> None:
        """accumulator += grad, in fp32."""
        n = check_arrays({"accumulator": accumulator, "grad": grad}, {"accumulator": _FP32})
        self._convert(self._library.portwright_add, accumulator, grad, n, num_threads)

    def widen(self, out: Tensor, source: Tensor, num_threads: int | None = None) -> None:
        """out = source, from half precision to fp32."""
        n = check_arrays({"out": out, "source": source}, {"out": _FP32})
        self._convert(self._library.portwright_convert, out, source, n, num_threads)

    def narrow(self, out: Tensor, source: Tensor, num_threads: int | None = None) -> None:
        """out = source, from fp32 to half precision, rounded to nearest even; NaN stays NaN."""
        n = check_arrays({"out": out, "source": source}, {"source": _FP32})
        self._convert(self._library.portwright_convert, out, source, n, num_threads)

    def _convert(self, function: Callable[..., int], out: Tensor, source: Tensor, n: int, num_threads: int | None) -> None:  # fmt: skip
        call = ConvertCall(
            out=out.data_ptr(),
            source=source.data_ptr(),
            n=n,
            out_dtype=DTYPE_CODES[out.dtype],
            source_dtype=DTYPE_CODES[source.dtype],
            stream=_should_stream(None, out),
        )
        function(ctypes.byref(call), _threads(num_threads))

    def sum_squares(self, grad: Tensor, num_threads: int | None = None) -> float:
        """The sum of squares in double, the same for any number of threads; inf and NaN show."""
        n = check_arrays({"grad": grad}, {})
        code = DTYPE_CODES[grad.dtype]
        return _squares(self._library.portwright_sum_squares(grad.data_ptr(), n, code, _threads(num_threads)))

    def touch(self, array: Tensor, num_threads: int | None = None) -> None:
        """Zeroes in parallel, shared out as `step` does: pages come to lie near the cores that will use them."""
        check_memory("array", array)
        num_bytes = array.numel() * array.element_size()
        self._library.portwright_touch(array.data_ptr(), num_bytes, _threads(num_threads))

    def bind_threads(self, cores: Sequence[int] | None) -> None:
        """Keeps thread i on core i of the list from now on, the calling thread excepted; None frees them again.

        A call uses the first `num_threads` of them. Cores that this process may not run on are refused.
        """
        chosen = list(cores or ())
        usable = usable_cores()
        strangers = [core for core in chosen if core not in usable]
        if strangers or len(chosen) > MAX_THREADS or (cores is not None and not chosen):
            raise UserError(f"Threads cannot be bound to cores {chosen}.", f"Choose among {usable}.")
        num_failed = self._library.portwright_bind((ctypes.c_int32 * len(chosen))(*chosen), len(chosen))
        if num_failed:
            raise UnsupportedError(
                f"The system refused to bind {num_failed} threads to cores {chosen or usable}"
            )


def _moment_dtypes(exp_avg: Tensor) -> dict[str, tuple[torch.dtype, ...]]:
    """exp_avg is of either kind, and the others are of the same."""
    same = (exp_avg.dtype,)
    return {"exp_avg": _MOMENTS, "exp_avg_sq": same, "exp_avg_out": same, "exp_avg_sq_out": same}


def _scalars(
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool, step: int, grad_factor: float
) -> dict[str, float]:  # fmt: skip
    """What the loop needs, worked out in double as torch does."""
    check_hyperparameters(lr, beta1, beta2, eps, weight_decay, step, grad_factor)
    if not weight_decay:
        decay, decay_factor = PLAIN, 1.0
    elif decoupled:
        decay, decay_factor = DECOUPLED, 1 - lr * weight_decay
    else:
        decay, decay_factor = COUPLED, weight_decay
    return {
        "decay": decay,
        "decay_factor": decay_factor,
        "grad_factor": grad_factor,
        "lerp_weight": 1 - beta1,
        "beta2": beta2,
        "one_minus_beta2": 1 - beta2,
        "bias_correction2_sqrt": (1 - beta2**step) ** 0.5,
        "eps": eps,
        "negative_step_size": -(lr / (1 - beta1**step)),
        "salt": (int(step) * 0x9E3779B1) & 0xFFFFFFFF,
    }


def _squares(total: float) -> float:
    if total < 0:
        raise MemoryError("The native optimizer found no memory for the partial sums of squares.")
    return float(total)


def _threads(num_threads: int | None) -> int:
    if num_threads is None:
        return default_threads()
    if num_threads < 1:
        raise UserError(f"num_threads={num_threads} is no number of threads.", "Pass 1 or more, or None.")
    return min(num_threads, MAX_THREADS)


def _tail(num_tail: int | None, length: int) -> int:
    if num_tail is None:
        return torch_tail(length)
    if not 0 <= num_tail <= length:
        raise UserError(
            f"num_tail={num_tail} is not in 0..{length}.", "Pass 0, or None for torch's own number."
        )
    return num_tail


def _should_stream(wanted: bool | None, out: Tensor) -> bool:
    return out.numel() * out.element_size() >= _STREAM_FROM_BYTES if wanted is None else wanted
