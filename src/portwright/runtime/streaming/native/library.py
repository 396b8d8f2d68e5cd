"""The compiled library of this process and the structures its functions take, as in adam.c and arrays.h."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import torch

from portwright.runtime.streaming.native.build import load_library

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
NO_ARRAY = 3
PLAIN, COUPLED, DECOUPLED = range(3)  # weight decay
MAX_THREADS = 512


class AdamCall(ctypes.Structure):
    """`struct adam`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("grad", "weight", "exp_avg", "exp_avg_sq")),
        *((name, ctypes.c_void_p) for name in ("weight_out", "exp_avg_out", "exp_avg_sq_out", "half_out")),
        *((name, ctypes.c_void_p) for name in ("squares",)),
        *((name, ctypes.c_int64) for name in ("n", "num_tail")),
        *((name, ctypes.c_int32) for name in ("grad_dtype", "moment_dtype", "half_dtype")),
        *((name, ctypes.c_int32) for name in ("stream_half", "stream_state", "decay", "wants_squares", "only_traffic")),
        ("num_ahead", ctypes.c_int32),
        ("salt", ctypes.c_uint32),
        *((name, ctypes.c_float) for name in ("grad_factor", "decay_factor", "lerp_weight", "beta2")),
        *((name, ctypes.c_float) for name in ("one_minus_beta2", "bias_correction2_sqrt", "eps", "negative_step_size")),
    )  # fmt: skip


class ConvertCall(ctypes.Structure):
    """`struct convert`."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("out_dtype", "source_dtype", "stream")),
    )


_POINTER, _LENGTH, _THREADS = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_ARGUMENTS = {
    "portwright_adam_step": (ctypes.POINTER(AdamCall), _THREADS),
    "portwright_convert": (ctypes.POINTER(ConvertCall), _THREADS),
    "portwright_add": (ctypes.POINTER(ConvertCall), _THREADS),
    "portwright_sum_squares": (_POINTER, _LENGTH, ctypes.c_int32, _THREADS),
    "portwright_touch": (_POINTER, _LENGTH, _THREADS),
    "portwright_copy": (_POINTER, _POINTER, _LENGTH, _THREADS),
    "portwright_bind": (ctypes.POINTER(ctypes.c_int32), ctypes.c_int),
}

_loaded: list[ctypes.CDLL] = []
_loading = threading.Lock()


def process_library(note: Callable[[str], None]) -> ctypes.CDLL:
    """The library, loaded once a process, since its threads belong to the process."""
    with _loading:
        if not _loaded:
            library = load_library(ctypes.sizeof(AdamCall) * 1000 + ctypes.sizeof(ConvertCall), note)
            for name, arguments in _ARGUMENTS.items():
                getattr(library, name).argtypes = arguments
            for name in ("portwright_adam_step", "portwright_sum_squares"):
                getattr(library, name).restype = ctypes.c_double
            _loaded.append(library)
        return _loaded[0]
