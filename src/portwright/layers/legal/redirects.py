"""For each function and layer of torch that a target refuses, its legal form and the condition of its use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from portwright.layers.legal import (
    attention,
    conv,
    diagonals,
    grid,
    indexing,
    losses,
    norms,
    padding,
    pointwise,
    pooling,
    recurrent,
    reductions,
    resample,
    scattering,
    windows,
)
from portwright.legal_forms import FORMS, Form, valid_targets

# takes a call's arguments, named as in the form, or a layer
Refused = Callable[[Any], bool]
_HOMES = (
    attention, conv, diagonals, grid, indexing, losses, norms, padding, pointwise, pooling, recurrent,
    reductions, resample, scattering, windows,
)  # fmt: skip
_BY_DIMENSION = tuple(module.__name__ for module in (diagonals, indexing, reductions, scattering, windows))
"""Forms that walk along dimensions; a tensor without any, which torch indulges, stays torch's."""


@dataclass(frozen=True)
class Redirect:
    """A function of torch, and the one that replaces it."""

    what: str
    form: Form
    function: Callable[..., Any]
    refused: Refused | None

    def applies(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the target would refuse this call, as far as we have an equal form of it."""
        if kwargs.get("out") is not None:
            return False
        if self.function.__module__ in _BY_DIMENSION and _is_scalar(args, kwargs):
            return False
        if self.refused is None:
            return True
        try:
            bound = inspect.signature(self.function).bind(
                *args, **{k: v for k, v in kwargs.items() if k != "out"}
            )
            bound.apply_defaults()
            return bool(self.refused(SimpleNamespace(**bound.arguments)))
        except (TypeError, ValueError, IndexError, AttributeError):
            return False  # the form does not know these arguments; torch's own function may


def _is_scalar(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    first = args[0] if args else next(iter(kwargs.values()), None)
    return isinstance(first, Tensor) and first.dim() == 0


@lru_cache(maxsize=8)
def redirects_for(target: str) -> Mapping[Any, Redirect]:
    """The redirects by torch's function, without any vendor's wrapper around it."""
    found: dict[Any, Redirect] = {}
    for form in FORMS if target in valid_targets() else ():
        for what in form.replaces:
            own = _resolve(what)
            if what in _FUNCTIONS and own is not None:
                found[own] = Redirect(what, form, *_FUNCTIONS[what])
    return found


def _resolve(what: str) -> Any:
    holders = {"F": torch.nn.functional, "Tensor": torch.Tensor, "torch": torch}
    first, *rest = what.split(".")
    value: Any = holders.get(first)
    for name in rest:
        value = getattr(value, name, None)
    return None if value is None else inspect.unwrap(value)


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(function)
    def write(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return input.copy_(function(input, *args, **kwargs))

    return write


def _past_first(dims: Any, more: Sequence[int], input: Tensor) -> bool:
    named = [dims, *more] if isinstance(dims, int) else list(dims)
    return any(dim % input.dim() for dim in named)


def _indexes_past_first(call: Any) -> bool:
    _, dim, index = indexing.split_key(call.input, call.key)
    # torch reads the value of a 0-dimensional index on the host
    return dim > 0 or (isinstance(index, Tensor) and index.dim() == 0)


def _sets_refused(call: Any) -> bool:
    """Whether an assignment is by an index tensor, or by a mask with a tensor of one value."""
    if isinstance(call.key, Tensor) and call.key.dtype == torch.bool:
        return isinstance(call.value, Tensor) and call.value.numel() == 1
    keys = list(call.key) if isinstance(call.key, tuple) else [call.key]
    return scattering.is_leading_index(keys) and len(keys) <= call.input.dim()


def _set(input: Tensor, key: Any, value: Any) -> None:
    if isinstance(key, Tensor) and key.dtype == torch.bool:
        input.copy_(indexing.masked_fill_at(input, key, value))
        return
    keys = list(key) if isinstance(key, tuple) else [key]
    values = value if isinstance(value, Tensor) else input.new_full((), value)
    input.copy_(scattering.index_put(input, keys, values))


def _falls(call: Any) -> bool:
    if not isinstance(call.dim, tuple | list):
        return False
    wrapped = [one % call.input.dim() for one in call.dim]
    return wrapped != sorted(wrapped)


def _between_numbers(call: Any) -> bool:
    options = call.options
    plain = {"dtype", "device", "requires_grad"} | {name for name, value in options.items() if value is None}
    floats = options.get("dtype") is None or options["dtype"].is_floating_point
    numbers = isinstance(call.start, int | float) and isinstance(call.end, int | float)
    return numbers and isinstance(call.steps, int) and floats and set(options) <= plain


def _line(start: Any, end: Any, steps: Any, **options: Any) -> Tensor:
    return pointwise.linspace(start, end, steps, **{k: v for k, v in options.items() if v is not None})


def _is_masked(call: Any) -> bool:
    extra = (call.bias_k, call.bias_v, call.static_k, call.static_v)
    masked = call.attn_mask is not None or call.key_padding_mask is not None
    return masked and not call.add_zero_attn and all(one is None for one in extra)


def _is_float(call: Any) -> bool:
    return bool(call.input.is_floating_point())


_REFUSED: dict[str, Refused] = {  # by the form's name; without a row every use is refused
    **dict.fromkeys(
        ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d", "ConvTranspose2d", "ConvTranspose3d"),
        lambda call: call.groups != 1,
    ),
    **dict.fromkeys(
        ("Conv2d", "Conv3d"), lambda layer: layer.groups != 1 or layer.padding_mode in ("reflect", "replicate")
    ),
    **dict.fromkeys(
        ("median", "cummax", "cummin", "nansum", "nanmean", "diagonal", "trace", "nan_to_num", "exp2", "asinh", "atanh",
         "erfc", "trunc", "logit", "vdot"),
        _is_float,
    ),
    **dict.fromkeys(("sum", "amax", "amin", "logsumexp", "var", "std"), _falls),
    **dict.fromkeys(("tril", "triu"), lambda call: call.input.dtype == torch.bool),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), lambda call: call.ceil_mode and _is_float(call)),
    **dict.fromkeys(
        (f"{name}{n}d" for name in ("adaptive_max_pool", "AdaptiveMaxPool") for n in (1, 2, 3)),
        lambda use: not use.return_indices,
    ),
    "interpolate": lambda call: call.mode != "area" and _is_float(call),
    "Upsample": lambda layer: layer.mode != "area",
    "batch_norm": lambda call: call.training and call.running_mean is None,
    "one_hot": lambda call: call.num_classes > 0,
    "flip": lambda call: _past_first(call.dims, call.more, call.input),
    "roll": lambda call: call.dims not in (None, ()) and _past_first(call.dims, call.more, call.input),
    "index_select": lambda call: isinstance(call.dim, int) and call.dim % call.input.dim() != 0,
    "getitem": _indexes_past_first,
    "index_put": lambda call: isinstance(call.values, Tensor) and scattering.is_leading_index(list(call.indices)),
    "_set": _sets_refused,
    "index_add": lambda call: call.dim % call.input.dim() != 0,
    "pad": lambda call: call.mode in ("reflect", "replicate"),
    "quantile": lambda call: isinstance(call.q, int | float),
    "bincount": lambda call: call.minlength > 0,
    "searchsorted": lambda call: True,  # a call that the form knows: none with a sorter
    "norm": lambda call: isinstance(call.p, int | float) and call.p > 0 and call.p != 2 and call.input.dim() > 0,
    "vector_norm": lambda call: call.ord > 0 and call.ord != 2 and call.x.dim() > 0,
    "normalize": lambda call: call.p > 0 and call.p != 2 and isinstance(call.dim, int) and call.input.dim() > 0,
    "pairwise_distance": lambda call: call.p > 0 and call.p != 2 and call.x1.dim() > 0,
    "dist": lambda call: call.p > 0,
    "scatter_reduce": lambda call: isinstance(call.src, Tensor) and call.reduce == "sum" and call.include_self,
    "_line": _between_numbers,
    "multi_head_attention_forward": _is_masked,
    "multi_margin_loss": lambda call: call.input.dim() > 0,
    "grid_sample": lambda call: call.mode in ("bilinear", "nearest"),
}  # fmt: skip
_CALLED_OTHERWISE = {"Tensor.__setitem__": _set, "torch.linspace": _line}
_BY_OTHER_MEANS = ("F.upsample", "torch.utils.checkpoint.checkpoint")  # which no TorchFunctionMode sees


def _code_of(form: Form, what: str) -> Any:
    """The function or class that replaces one of a form's names."""
    if what in _CALLED_OTHERWISE:
        return _CALLED_OTHERWISE[what]
    last = what.rpartition(".")[2]
    name = last if what.startswith("nn.") or form.name[0].isupper() else form.name
    code = next(vars(home)[name] for home in _HOMES if name in home.__all__)
    return _in_place(code) if last.endswith("_") and not last.endswith("__") else code


def _with_refusal(code: Any) -> tuple[Any, Refused | None]:
    return code, _REFUSED.get(code.__name__)


_FUNCTIONS: dict[str, tuple[Callable[..., Any], Refused | None]] = {
    what: _with_refusal(_code_of(form, what))
    for form in FORMS
    for what in form.replaces
    if not what.startswith("nn.") and what not in _BY_OTHER_MEANS
}
LAYERS: dict[type[nn.Module], tuple[type[nn.Module], Refused | None]] = {
    getattr(nn, what.removeprefix("nn.")): _with_refusal(_code_of(form, what))
    for form in FORMS
    for what in form.replaces
    if what.startswith("nn.")
}
