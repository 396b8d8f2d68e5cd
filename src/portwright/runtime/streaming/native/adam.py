"""Adam on flat CPU tensors in one pass over memory, in C and on several threads."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from portwright.errors import UnsupportedError, UserError
from portwright.runtime.streaming.native.build import BuildError, load_library

_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_NONE = 3
_PLAIN, _COUPLED, _DECOUPLED = range(3)
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_HALVES = (torch.bfloat16, torch.float16)
_MOMENTS = (torch.float32, torch.bfloat16)
# Below this the caches hold what is written until it is read again, and writing past them would only lose it.
_STREAM_FROM_BYTES = 4 << 20
_MAX_THREADS = 512
_OFF = ("0", "off", "no", "false")
_ON = ("", "1", "on", "yes", "true")


class _Adam(ctypes.Structure):
    """`struct adam` of adam.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("grad", "weight", "exp_avg", "exp_avg_sq")),
        *((name, ctypes.c_void_p) for name in ("weight_out", "exp_avg_out", "exp_avg_sq_out", "half_out")),
        ("n", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("grad_dtype", "moment_dtype", "half_dtype")),
        *((name, ctypes.c_int32) for name in ("stream_half", "stream_state", "decay", "only_traffic")),
        ("salt", ctypes.c_uint32),
        *((name, ctypes.c_float) for name in ("grad_factor", "decay_factor", "lerp_weight", "beta2")),
        *((name, ctypes.c_float) for name in ("one_minus_beta2", "bias_correction2_sqrt", "eps", "negative_step_size")),
    )  # fmt: skip


class _Convert(ctypes.Structure):
    """`struct convert` of adam.c."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("out_dtype", "source_dtype", "stream")),
    )


def load_native(note: Callable[[str], None]) -> NativeAdam | None:
    """The native Adam of this process, compiled at first use; None and one note where there is none.

    PORTWRIGHT_NATIVE=0 turns it off.
    """
    wanted = os.environ.get("PORTWRIGHT_NATIVE", "").strip().lower()
    if wanted in _OFF:
        note(f"PORTWRIGHT_NATIVE={wanted}: torch's own optimizer kernels are used.")
        return None
    if wanted not in _ON:
        raise UserError(
            f"PORTWRIGHT_NATIVE={wanted} is neither on nor off.", "Set it to 0 or 1, or leave it out."
        )
    if os.name != "posix":
        note(
            f"The native optimizer needs a POSIX system, not {os.name}: torch's own kernels are used, which are slower."
        )
        return None
    try:
        return NativeAdam(_library(note))
    except BuildError as error:
        note(
            f"The native optimizer was not compiled: {error}. Torch's own kernels are used, which are slower."
        )
        return None


_loaded: list[ctypes.CDLL] = []


def _library(note: Callable[[str], None]) -> ctypes.CDLL:
    """One a process, since its threads are."""
    if not _loaded:
        library = load_library(ctypes.sizeof(_Adam), note)
        library.portwright_adam_step.argtypes = (ctypes.POINTER(_Adam), ctypes.c_int)
        for name in ("portwright_convert", "portwright_add"):
            getattr(library, name).argtypes = (ctypes.POINTER(_Convert), ctypes.c_int)
        library.portwright_sum_squares.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int32,
            ctypes.c_int,
        )
        library.portwright_sum_squares.restype = ctypes.c_double
        library.portwright_touch.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
        library.portwright_copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
        library.portwright_bind.argtypes = (ctypes.POINTER(ctypes.c_int32), ctypes.c_int)
        _loaded.append(library)
    return _loaded[0]


def default_threads() -> int:
    """As many as torch uses; where several processes share the machine, this one's share of its cores.

    A launcher of several processes sets OMP_NUM_THREADS to 1, which would leave the optimizer one core.
    """
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    if num_processes > 1:
        return max(1, len(_usable_cores()) // num_processes)
    return torch.get_num_threads()


def _usable_cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


class NativeAdam:
    """Elementwise work on flat contiguous CPU tensors of one length, at any alignment.

    Calls drop the GIL, and calls of several threads run one after the other on the same pool of threads. What is computed does not
    depend on their number. A forked child makes a pool of its own at its first call. `num_threads` None is `default_threads()`.
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
        stream: bool | None = None,
    ) -> None:
        """One step of Adam, or of AdamW where `decoupled`: as torch's fused kernel, with `step` counted from 1.

        Outputs are the inputs themselves (in place) or lie apart from them. `half_out` takes the new weight in its own dtype. Moments
        in bf16 are rounded stochastically, by bits drawn from the element itself and `step`: nearest would hold exp_avg_sq where
        it is, since it changes by a thousandth. `stream` None decides by size whether outputs that are not inputs go past the caches.
        """
        arrays = {
            "weight": weight, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "grad": grad,
            "weight_out": weight_out, "exp_avg_out": exp_avg_out, "exp_avg_sq_out": exp_avg_sq_out,
        }  # fmt: skip
        if half_out is not None:
            arrays["half_out"] = half_out
        n = _check(arrays)
        _check_dtype("weight", weight, (torch.float32,))
        _check_dtype("weight_out", weight_out, (torch.float32,))
        _check_dtype("exp_avg", exp_avg, _MOMENTS)
        for name in ("exp_avg_sq", "exp_avg_out", "exp_avg_sq_out"):
            _check_dtype(name, arrays[name], (exp_avg.dtype,))
        _check_apart(arrays)
        is_in_place = weight.data_ptr() == weight_out.data_ptr()
        call = _Adam(
            **{name: array.data_ptr() for name, array in arrays.items()},
            n=n,
            grad_dtype=_CODES[grad.dtype],
            moment_dtype=_CODES[exp_avg.dtype],
            half_dtype=_NONE if half_out is None else _CODES[half_out.dtype],
            stream_half=_should_stream(stream, half_out),
            stream_state=not is_in_place and _should_stream(stream, weight_out),
            salt=(step * 0x9E3779B1) & 0xFFFFFFFF,
            **_scalars(lr, beta1, beta2, eps, weight_decay, decoupled, step, grad_factor),
        )
        self._library.portwright_adam_step(ctypes.byref(call), _threads(num_threads))

    def add(self, accumulator: Tensor, grad: Tensor, num_threads: int | None = None) -> None:
        """accumulator += grad, in fp32."""
        n = _check({"accumulator": accumulator, "grad": grad})
        _check_dtype("accumulator", accumulator, (torch.float32,))
        self._convert("portwright_add", accumulator, grad, n, num_threads)

    def widen(self, out: Tensor, source: Tensor, num_threads: int | None = None) -> None:
        """out = source, from half precision to fp32."""
        n = _check({"out": out, "source": source})
        _check_dtype("out", out, (torch.float32,))
        self._convert("portwright_convert", out, source, n, num_threads)

    def narrow(self, out: Tensor, source: Tensor, num_threads: int | None = None) -> None:
        """out = source, from fp32 to half precision, rounded to nearest even; NaN stays NaN."""
        n = _check({"out": out, "source": source})
        _check_dtype("source", source, (torch.float32,))
        self._convert("portwright_convert", out, source, n, num_threads)

    def _convert(self, name: str, out: Tensor, source: Tensor, n: int, num_threads: int | None) -> None:
        _check_apart({"source": source, "out": out})
        call = _Convert(
            out=out.data_ptr(),
            source=source.data_ptr(),
            n=n,
            out_dtype=_CODES[out.dtype],
            source_dtype=_CODES[source.dtype],
            stream=_should_stream(None, out),
        )
        getattr(self._library, name)(ctypes.byref(call), _threads(num_threads))

    def sum_squares(self, grad: Tensor, num_threads: int | None = None) -> float:
        """The sum of squares in double, the same for any number of threads; inf and NaN show."""
        n = _check({"grad": grad})
        total = self._library.portwright_sum_squares(
            grad.data_ptr(), n, _CODES[grad.dtype], _threads(num_threads)
        )
        if total < 0:
            raise MemoryError("sum_squares: no memory for its partial sums")
        return float(total)

    def touch(self, array: Tensor, num_threads: int | None = None) -> None:
        """Zeroes in parallel, as `step` will later share the array out: its pages come to lie near the cores that use them."""
        _check_memory("array", array)
        self._library.portwright_touch(
            array.data_ptr(), array.numel() * array.element_size(), _threads(num_threads)
        )

    def bind_threads(self, cores: Sequence[int]) -> None:
        """Keeps thread i on core i of the list from now on; calls with fewer threads use the first ones.

        Cores outside the process's own set are refused. The calling thread is not bound.
        """
        usable = _usable_cores()
        strangers = [core for core in cores if core not in usable]
        if strangers or not cores or len(cores) > _MAX_THREADS:
            raise UserError(
                f"bind_threads: cores {list(cores)} cannot be bound to.", f"Take some of {sorted(usable)}."
            )
        array = (ctypes.c_int32 * len(cores))(*cores)
        num_failed = self._library.portwright_bind(array, len(cores))
        if num_failed:
            raise UnsupportedError(
                f"{num_failed} of {len(cores)} threads could not be bound to cores {list(cores)}"
            )


def _scalars(
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool, step: int, grad_factor: float
) -> dict[str, float]:  # fmt: skip
    """What the loop needs, worked out in double as torch does."""
    if step < 1:
        raise UserError(f"step={step}: steps are counted from 1.", "Pass the number of this update.")
    kind = (_DECOUPLED if decoupled else _COUPLED) if weight_decay else _PLAIN
    return {
        "decay": kind,
        "decay_factor": 1 - lr * weight_decay if decoupled else weight_decay,
        "grad_factor": grad_factor,
        "lerp_weight": 1 - beta1,
        "beta2": beta2,
        "one_minus_beta2": 1 - beta2,
        "bias_correction2_sqrt": (1 - beta2**step) ** 0.5,
        "eps": eps,
        "negative_step_size": -(lr / (1 - beta1**step)),
    }


def _threads(num_threads: int | None) -> int:
    if num_threads is None:
        return default_threads()
    if num_threads < 1:
        raise UserError(f"num_threads={num_threads} is not a number of threads.", "Pass 1 or more, or None.")
    return min(num_threads, _MAX_THREADS)


def _should_stream(wanted: bool | None, out: Tensor | None) -> bool:
    if out is None:
        return False
    return out.numel() * out.element_size() >= _STREAM_FROM_BYTES if wanted is None else wanted


def _check(arrays: dict[str, Tensor]) -> int:
    """The one length of all, whose dtypes are ours."""
    lengths = {}
    for name, array in arrays.items():
        _check_memory(name, array)
        _check_dtype(name, array, _FLOATS)
        lengths[name] = array.numel()
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise UserError(f"Lengths differ: {listed}.", "Pass arrays of one length.")
    return next(iter(lengths.values()))


def _check_memory(name: str, array: Tensor) -> None:
    if array.device.type != "cpu":
        raise UserError(f"{name} is on {array.device}.", "Pass an array in host memory.")
    if array.layout != torch.strided or not array.is_contiguous():
        raise UserError(f"{name} has gaps (shape {tuple(array.shape)}).", "Pass a contiguous array.")


def _check_dtype(name: str, array: Tensor, allowed: tuple[torch.dtype, ...]) -> None:
    if array.dtype not in allowed:
        valid = " or ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise UserError(f"{name} is {str(array.dtype).removeprefix('torch.')}.", f"Pass {valid}.")


def _check_apart(arrays: dict[str, Tensor]) -> None:
    """An output may be its own input and must share no memory with any other array."""
    spans = {
        name: (array.data_ptr(), array.data_ptr() + array.numel() * array.element_size())
        for name, array in arrays.items()
    }
    outputs = [name for name in arrays if name.endswith("out") or name == "accumulator"]
    for out in outputs:
        for name, (start, end) in spans.items():
            if name == out or not (start < spans[out][1] and spans[out][0] < end):
                continue
            if out == f"{name}_out" and spans[name] == spans[out]:
                continue
            raise UserError(f"{out} overlaps {name}.", "Give it memory of its own.")
