"""The Cerebras SDK's mixed precision, which is always on: which functions see half precision and which see single.

The SDK replaces attributes of torch, torch.nn.functional and torch.Tensor when a run starts, in the manner of Apex. We do the
same for as long as a step is captured, since only then do the same calls come out in the same precision: a function that is
called from C++, or that a module imported by name before, is left alone in both. The lists are facts about SDK 2.10.0.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from portwright.patched import patched

HALF = torch.float16  # the SDK's default; cbfloat16 and bfloat16 are settings

_HALF_NN = [
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "conv_tbc",
    "dropout",
    "group_norm",
    "linear",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]
_FLOAT_THEN_HALF_NN = ("layer_norm", "embedding")
_FLOAT_NN = [
    "interpolate",
    "grid_sample",
    "softplus",
    "softmin",
    "log_softmax",
    "local_response_norm",
    "normalize",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "cross_entropy",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "multi_margin_loss",
    "nll_loss",
    "binary_cross_entropy_with_logits",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "ctc_loss",
]
_HALF = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "conv_tbc",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "mm",
    "mv",
]
_FLOAT = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow",
    "cumprod",
    "cumsum",
    "dist",
    "norm",
    "prod",
    "std",
    "sum",
    "var",
    "renorm",
]
_PROMOTED = [
    "addcdiv",
    "addcmul",
    "atan2",
    "cross",
    "bilinear",
    "dot",
    "add",
    "div",
    "mul",
    "eq",
    "equal",
    "ge",
    "gt",
    "le",
    "lt",
    "ne",
]
_PROMOTED_OPERATORS = [
    "__add__",
    "__div__",
    "__eq__",
    "__ge__",
    "__gt__",
    "__iadd__",
    "__idiv__",
    "__imul__",
    "__isub__",
    "__itruediv__",
    "__le__",
    "__lt__",
    "__mul__",
    "__ne__",
    "__radd__",
    "__rdiv__",
    "__rmul__",
    "__rsub__",
    "__rtruediv__",
    "__sub__",
    "__truediv__",
]
_CELLS = ("rnn_tanh_cell", "rnn_relu_cell", "gru_cell", "lstm_cell")

_Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextlib.contextmanager
def mixed_precision() -> Iterator[None]:
    """Within, torch's functions cast their arguments as they do under the SDK."""
    with contextlib.ExitStack() as stack:
        for owner, name, wrap in _replacements():
            original = getattr(owner, name, None)
            if original is not None:
                stack.enter_context(patched(owner, name, wrap(original)))
        yield


def _replacements() -> Iterator[tuple[Any, str, _Wrap]]:
    nn = torch.nn.functional
    yield from ((nn, name, _casting(HALF)) for name in _HALF_NN)
    yield from ((nn, name, _casting(torch.float32)) for name in _FLOAT_NN)
    yield from ((nn, name, _casting(torch.float32, HALF)) for name in _FLOAT_THEN_HALF_NN)
    yield from ((torch, name, _casting(HALF)) for name in _HALF)
    yield from ((torch, name, _casting(torch.float32)) for name in _FLOAT)
    yield from ((Tensor, name, _casting(HALF)) for name in ("__matmul__", *_HALF))
    yield from (
        (Tensor, name, _casting(torch.float32))
        for name in ("__ipow__", "__pow__", "__rpow__", "cpu", *_FLOAT)
    )
    yield from ((torch, name, _promoting) for name in _PROMOTED)
    yield from ((Tensor, name, _promoting) for name in (*_PROMOTED_OPERATORS, *_PROMOTED))
    yield from ((owner, name, _promoting_sequence) for owner in (torch, Tensor) for name in ("cat", "stack"))
    in_place = (f"{name}_" for name in ("__matmul__", *_HALF, *_PROMOTED_OPERATORS, *_PROMOTED))
    yield from ((Tensor, name, _following_the_first) for name in in_place)
    yield from ((torch._VF, name, _casting(HALF)) for name in _CELLS)
    yield torch.nn.RNNBase, "check_input", _checking_in_one_precision
    yield torch.autocast, "__init__", _refusing_the_device


def _is_active() -> bool:
    """Whether a call is above autograd: below it torch's Python kernels call the same functions, which must not cast."""
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)


def _around(call: Callable[..., Any]) -> _Wrap:
    """A wrapper of functions: `call` gets the function and its arguments, where a call is above autograd."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return call(function, *args, **kwargs) if _is_active() else function(*args, **kwargs)

        return wrapped

    return wrap


def _casting(dtype: torch.dtype, output: torch.dtype | None = None) -> _Wrap:
    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        args, kwargs = _cast_all(dtype, args, kwargs)
        result = function(*args, **kwargs)
        return _cast(result, output) if output is not None else result

    return _around(call)


@_around
def _promoting(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Half and single precision together become single; other combinations are left to torch."""
    if _dtypes((*args, *kwargs.values())) == {torch.float16, torch.float32}:
        args, kwargs = _cast_all(torch.float32, args, kwargs)
    return function(*args, **kwargs)


def _checking_in_one_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives an LSTM or GRU inputs of one precision: it is refused anyway, and an error here would hide the rest of the step."""

    @functools.wraps(function)
    def call(self: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.mode in ("LSTM", "GRU") and input.dtype is HALF:
            input = input.to(self._flat_weights[0].dtype)
        return function(self, input, *args, **kwargs)

    return call


@_around
def _refusing_the_device(
    function: Callable[..., Any], self: Any, device_type: str, *args: Any, **kwargs: Any
) -> Any:
    """Autocast does not know the SDK's device, which under capture is called the CPU; so it is refused."""
    if device_type == "cpu":
        raise RuntimeError(
            "torch.autocast does not know the device ('unsupported scalarType'); "
            "take it out of the step, where mixed precision is always on"
        )
    return function(self, device_type, *args, **kwargs)


@_around
def _promoting_sequence(function: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    if {t.dtype for t in tensors} == {torch.float16, torch.float32}:
        tensors = [_cast(t, torch.float32) for t in tensors]
    return function(tensors, *args, **kwargs)


@_around
def _following_the_first(function: Callable[..., Any], first: Tensor, *args: Any, **kwargs: Any) -> Any:
    """An in-place method keeps the precision of the tensor that it changes."""
    if first.dtype in (torch.float16, torch.float32):
        args, kwargs = _cast_all(first.dtype, args, kwargs)
    return function(first, *args, **kwargs)


def _cast_all(
    dtype: torch.dtype, args: Iterable[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(_cast(a, dtype) for a in args), {name: _cast(a, dtype) for name, a in kwargs.items()}


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not _is_floating(value):
        return value
    if isinstance(value, (tuple, list)):
        return type(value)([_cast(item, dtype) for item in value])
    return value if value.dtype == dtype else value.to(dtype)


def _is_floating(value: Any) -> bool:
    """A floating-point tensor, or a tuple or list of nothing else."""
    if isinstance(value, (tuple, list)):
        return len(value) > 0 and all(_is_floating(item) for item in value)
    return isinstance(value, Tensor) and value.is_floating_point()


def _dtypes(values: Iterable[Any]) -> set[torch.dtype]:
    found: set[torch.dtype] = set()
    for value in values:
        if isinstance(value, Tensor):
            if value.is_floating_point():
                found.add(value.dtype)
        elif isinstance(value, (tuple, list)) and _is_floating(value):
            found |= _dtypes(value)
    return found
