"""For each of torch's functions that a target refuses, the legal form and when the call needs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor

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
    reductions,
    resample,
    scattering,
    windows,
)
from portwright.layers.legal.forms import FORMS, Form

Refused = Callable[..., bool]


@dataclass(frozen=True)
class Redirect:
    """A call of torch's, and what stands in for it. `refused` takes the call's own arguments."""

    what: str
    form: Form
    function: Callable[..., Any]
    refused: Refused | None

    @property
    def _is_by_dimension(self) -> bool:
        return self.function.__module__ in _BY_DIMENSION

    def applies(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the target would refuse this call, as far as we have an equal form of it."""
        if kwargs.get("out") is not None or (self._is_by_dimension and _is_scalar(args, kwargs)):
            return False
        if self.refused is None:
            return True
        try:
            return self.refused(*args, **kwargs)
        except (TypeError, ValueError, IndexError, AttributeError):
            return False  # not a call that the form knows: torch's own says what it thinks of it


_BY_DIMENSION = tuple(module.__name__ for module in (diagonals, indexing, reductions, scattering, windows))
"""Forms that walk along dimensions; a tensor without any, which torch indulges, stays torch's."""


def _is_scalar(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    first = args[0] if args else next(iter(kwargs.values()), None)
    return isinstance(first, Tensor) and first.dim() == 0


@lru_cache(maxsize=8)
def redirects_for(target: str) -> Mapping[Any, Redirect]:
    """By torch's own function object, as it is under any wrapper that a vendor has put around it."""
    found: dict[Any, Redirect] = {}
    for form in FORMS:
        if target not in form.targets:
            continue
        for what in form.replaces:
            entry = _FUNCTIONS.get(what)
            own = _resolve(what)
            if entry is not None and own is not None:
                found[own] = Redirect(what, form, *entry)
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


def _several_groups(
    input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> bool:  # fmt: skip
    return groups != 1


def _several_groups_transposed(
    input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> bool:  # fmt: skip
    return groups != 1


def _smooth_or_nearest(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    *rest: Any,
    **options: Any,
) -> bool:
    return mode != "area" and input.is_floating_point()


def _forgets(
    input: Tensor, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> bool:  # fmt: skip
    return training and running_mean is None


def _knows_classes(tensor: Tensor, num_classes: int = -1) -> bool:
    return num_classes > 0


def _past_first(input: Tensor, dims: Any, *more: int) -> bool:
    named = [dims, *more] if isinstance(dims, int) else list(dims)
    return any(dim % input.dim() for dim in named)


def _rolls_past_first(input: Tensor, shifts: Any, dims: Any = None, *more: int) -> bool:
    return dims is not None and dims != () and _past_first(input, dims, *more)


def _selects_past_first(input: Tensor, dim: int, index: Tensor) -> bool:
    return isinstance(dim, int) and dim % input.dim() != 0


def _indexes_past_first(input: Tensor, key: Any) -> bool:
    _, dim, index = indexing.split_key(input, key)
    return dim > 0 or (
        isinstance(index, Tensor) and index.dim() == 0
    )  # torch reads the value of such a tensor


def _puts_leading(input: Tensor, indices: Any, values: Any, accumulate: bool = False) -> bool:
    return isinstance(values, Tensor) and scattering.is_leading_index(list(indices))


def _sets_refused(input: Tensor, key: Any, value: Any) -> bool:
    """By an index tensor, or by a mask with a tensor of one value."""
    if isinstance(key, Tensor) and key.dtype == torch.bool:
        return isinstance(value, Tensor) and value.numel() == 1
    keys = list(key) if isinstance(key, tuple) else [key]
    return scattering.is_leading_index(keys) and len(keys) <= input.dim()


def _set(input: Tensor, key: Any, value: Any) -> None:
    if isinstance(key, Tensor) and key.dtype == torch.bool:
        input.copy_(indexing.masked_fill_at(input, key, value))
        return
    keys = list(key) if isinstance(key, tuple) else [key]
    values = value if isinstance(value, Tensor) else input.new_full((), value)
    input.copy_(scattering.index_put(input, keys, values))


def _adds_past_first(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> bool:
    return dim % input.dim() != 0


def _reflects(input: Tensor, pad: Any, mode: str = "constant", value: Any = None) -> bool:
    return mode in ("reflect", "replicate")


def _without_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> bool:
    return not return_indices


def _overhangs(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, *rest: Any, **more: Any
) -> bool:  # fmt: skip
    return ceil_mode and input.is_floating_point()


def _one_number(input: Tensor, q: Any, *rest: Any, **options: Any) -> bool:
    return isinstance(q, int | float)


def _falls(input: Tensor, dim: Any = None, *rest: Any, **options: Any) -> bool:
    if not isinstance(dim, tuple | list):
        return False
    wrapped = [one % input.dim() for one in dim]
    return wrapped != sorted(wrapped)


def _has_length(input: Tensor, weights: Any = None, minlength: int = 0) -> bool:
    return minlength > 0


def _no_sorter(sorted_sequence: Tensor, input: Any, *, sorter: Any = None, **options: Any) -> bool:
    return sorter is None


def _is_mask(input: Tensor, diagonal: int = 0) -> bool:
    return input.dtype == torch.bool


def _is_float(input: Tensor, *rest: Any, **options: Any) -> bool:
    return input.is_floating_point()


def _other_norm(
    input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> bool:
    return isinstance(p, int | float) and p not in (0, 2) and p > 0 and input.dim() > 0


def _other_vector_norm(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> bool:
    return ord != 2 and ord > 0 and x.dim() > 0


def _other_normalize(
    input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None
) -> bool:
    return p != 2.0 and p > 0 and isinstance(dim, int) and input.dim() > 0


def _other_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> bool:
    return p != 2.0 and p > 0 and x1.dim() > 0


def _is_known_distance(input: Tensor, other: Tensor, p: float = 2.0) -> bool:
    return p > 0


def _scatters_sums(
    input: Tensor, dim: int, index: Tensor, src: Any, reduce: str, *, include_self: bool = True
) -> bool:
    return isinstance(src, Tensor) and reduce == "sum" and include_self


def _between_numbers(start: Any, end: Any, steps: Any, **options: Any) -> bool:
    plain = {"dtype", "device", "requires_grad"} | {name for name, value in options.items() if value is None}
    floats = options.get("dtype") is None or options["dtype"].is_floating_point
    numbers = isinstance(start, int | float) and isinstance(end, int | float) and isinstance(steps, int)
    return numbers and floats and set(options) <= plain


def _line(start: Any, end: Any, steps: Any, **options: Any) -> Tensor:
    return pointwise.linspace(start, end, steps, **{k: v for k, v in options.items() if v is not None})


def _has_scores(input: Tensor, *rest: Any, **options: Any) -> bool:
    return input.dim() > 0


def _is_masked(*args: Any, **options: Any) -> bool:
    given = inspect.signature(attention.multi_head_attention_forward).bind(*args, **options)
    call = given.arguments
    extra = [call.get(name) for name in ("bias_k", "bias_v", "static_k", "static_v")]
    masked = call.get("attn_mask") is not None or call.get("key_padding_mask") is not None
    return masked and not call.get("add_zero_attn") and all(one is None for one in extra)


def _samples(input: Tensor, grid: Tensor, mode: str = "bilinear", *rest: Any, **options: Any) -> bool:
    return mode in ("bilinear", "nearest")


def _both(name: str, function: Callable[..., Any], refused: Refused | None = None) -> dict[str, Any]:
    return {f"{holder}.{name}": (function, refused) for holder in ("torch", "Tensor")}


_FUNCTIONS: dict[str, tuple[Callable[..., Any], Refused | None]] = {
    "F.conv1d": (conv.conv1d, None),
    "F.conv2d": (conv.conv2d, _several_groups),
    "F.conv3d": (conv.conv3d, _several_groups),
    "F.conv_transpose1d": (conv.conv_transpose1d, None),
    "F.conv_transpose2d": (conv.conv_transpose2d, _several_groups_transposed),
    "F.conv_transpose3d": (conv.conv_transpose3d, _several_groups_transposed),
    "F.interpolate": (resample.interpolate, _smooth_or_nearest),
    "F.instance_norm": (norms.instance_norm, None),
    "F.batch_norm": (norms.batch_norm, _forgets),
    "F.one_hot": (indexing.one_hot, _knows_classes),
    **_both("flip", indexing.flip, _past_first),
    **_both("fliplr", indexing.fliplr),
    **_both("rot90", indexing.rot90),
    **_both("roll", indexing.roll, _rolls_past_first),
    **_both("index_select", indexing.index_select, _selects_past_first),
    "Tensor.__getitem__": (indexing.getitem, _indexes_past_first),
    **_both("index_put", scattering.index_put, _puts_leading),
    "Tensor.index_put_": (_in_place(scattering.index_put), _puts_leading),
    "Tensor.__setitem__": (_set, _sets_refused),
    **_both("index_fill", indexing.index_fill),
    "Tensor.index_fill_": (_in_place(indexing.index_fill), None),
    **_both("index_copy", scattering.index_copy),
    "Tensor.index_copy_": (_in_place(scattering.index_copy), None),
    **_both("index_add", scattering.index_add, _adds_past_first),
    "Tensor.index_add_": (_in_place(scattering.index_add), _adds_past_first),
    **_both("take", scattering.take),
    "F.channel_shuffle": (indexing.channel_shuffle, None),
    "F.unfold": (windows.unfold, None),
    "F.fold": (windows.fold, None),
    "Tensor.unfold": (windows.unfold_dimension, None),
    "F.pad": (padding.pad, _reflects),
    "F.adaptive_max_pool1d": (pooling.adaptive_max_pool1d, _without_indices),
    "F.adaptive_max_pool2d": (pooling.adaptive_max_pool2d, _without_indices),
    "F.adaptive_max_pool3d": (pooling.adaptive_max_pool3d, _without_indices),
    "F.avg_pool1d": (pooling.avg_pool1d, _overhangs),
    "F.avg_pool2d": (pooling.avg_pool2d, _overhangs),
    "F.avg_pool3d": (pooling.avg_pool3d, _overhangs),
    "F.max_unpool2d": (pooling.max_unpool2d, None),
    **_both("median", reductions.median, _is_float),
    **_both("kthvalue", reductions.kthvalue),
    **_both("quantile", reductions.quantile, _one_number),
    **_both("cummax", reductions.cummax, _is_float),
    **_both("cummin", reductions.cummin, _is_float),
    **_both("logcumsumexp", reductions.logcumsumexp),
    **_both("sum", reductions.sum, _falls),
    **_both("amax", reductions.amax, _falls),
    **_both("amin", reductions.amin, _falls),
    **_both("logsumexp", reductions.logsumexp, _falls),
    **_both("var", reductions.var, _falls),
    **_both("std", reductions.std, _falls),
    **_both("nansum", reductions.nansum, _is_float),
    **_both("nanmean", reductions.nanmean, _is_float),
    "torch.var_mean": (reductions.var_mean, None),
    "torch.std_mean": (reductions.std_mean, None),
    **_both("count_nonzero", reductions.count_nonzero),
    **_both("bincount", reductions.bincount, _has_length),
    "torch.searchsorted": (reductions.searchsorted, _no_sorter),
    "torch.bucketize": (reductions.bucketize, None),
    **_both("diagonal", diagonals.diagonal, _is_float),
    **_both("diag_embed", diagonals.diag_embed),
    **_both("diag", diagonals.diag),
    **_both("trace", diagonals.trace, _is_float),
    **_both("tril", diagonals.tril, _is_mask),
    **_both("triu", diagonals.triu, _is_mask),
    **_both("cross", diagonals.cross),
    "torch.linalg.cross": (diagonals.linalg_cross, None),
    "F.prelu": (pointwise.prelu, None),
    "torch.prelu": (pointwise.prelu, None),
    "F.selu": (pointwise.selu, None),
    "torch.selu": (pointwise.selu, None),
    "F.celu": (pointwise.celu, None),
    "torch.celu": (pointwise.celu, None),
    "F.hardsigmoid": (pointwise.hardsigmoid, None),
    "F.softshrink": (pointwise.softshrink, None),
    "F.hardshrink": (pointwise.hardshrink, None),
    **_both("hardshrink", pointwise.hardshrink),
    **_both("lerp", pointwise.lerp),
    "Tensor.lerp_": (_in_place(pointwise.lerp), None),
    **_both("nan_to_num", pointwise.nan_to_num, _is_float),
    "Tensor.nan_to_num_": (_in_place(pointwise.nan_to_num), _is_float),
    **_both("logaddexp", pointwise.logaddexp),
    **_both("fmax", pointwise.fmax),
    **_both("fmin", pointwise.fmin),
    "F.pairwise_distance": (pointwise.pairwise_distance, _other_distance),
    **_both("dist", pointwise.dist, _is_known_distance),
    **_both("scatter_reduce", scattering.scatter_reduce, _scatters_sums),
    **_both("hypot", pointwise.hypot),
    **_both("exp2", pointwise.exp2, _is_float),
    "torch.special.exp2": (pointwise.exp2, _is_float),
    **_both("asinh", pointwise.asinh, _is_float),
    **_both("atanh", pointwise.atanh, _is_float),
    **_both("erfc", pointwise.erfc, _is_float),
    "torch.special.erfc": (pointwise.erfc, _is_float),
    **_both("trunc", pointwise.trunc, _is_float),
    **_both("fix", pointwise.trunc, _is_float),
    **_both("frac", pointwise.frac),
    **_both("logit", pointwise.logit, _is_float),
    "torch.special.logit": (pointwise.logit, _is_float),
    **_both("mv", pointwise.mv),
    **_both("vdot", pointwise.vdot, _is_float),
    **_both("norm", pointwise.norm, _other_norm),
    "torch.linalg.vector_norm": (pointwise.vector_norm, _other_vector_norm),
    "F.normalize": (pointwise.normalize, _other_normalize),
    "torch.linspace": (_line, _between_numbers),
    "F.binary_cross_entropy": (losses.binary_cross_entropy, None),
    "F.smooth_l1_loss": (losses.smooth_l1_loss, None),
    "F.huber_loss": (losses.huber_loss, None),
    "F.soft_margin_loss": (losses.soft_margin_loss, None),
    "F.multi_head_attention_forward": (attention.multi_head_attention_forward, _is_masked),
    "F.gaussian_nll_loss": (losses.gaussian_nll_loss, None),
    "F.multi_margin_loss": (losses.multi_margin_loss, _has_scores),
    "F.grid_sample": (grid.grid_sample, _samples),
    "F.affine_grid": (grid.affine_grid, None),
}
