"""Products of half tensors, added up in half or in float32 as options.Precision.setPartialsType says.

An IPU multiplies half numbers in groups of 16 and keeps the running sum between groups in the type of the partials. torch's own
ops on a CPU keep it in float32 (or whatever a library chooses), so that a sum which is lost on an IPU looks good here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

# Input channels that the matrix unit of an IPU takes at once for half inputs: inside of a group the sum is not rounded.
PRODUCTS_A_ROUND = 16
_NUMBERS_AT_ONCE = (
    1 << 21
)  # of float32 that are kept in memory for products of many groups, or for what a kernel sees


def choose_target(target: Any, partials: torch.dtype | None) -> Any:
    """What runs in the place of an op: the same op, unless it multiplies matrices and `partials` are asked for."""
    if partials is None or target not in _IN_HALF:
        return target
    if partials == torch.float16:
        return _when_half(target, _IN_HALF[target])
    if partials == torch.float32:
        return _when_half(target, _rounded_once(target))
    raise ValueError(f"partials are torch.float16 or torch.float32, not {partials}")


@contextmanager
def tracing_for(partials: torch.dtype | None) -> Iterator[None]:
    """Has attention traced as matrix products where their partials matter: torch's fused kernels have partials of their own."""
    if partials is None:
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    allow = getattr(torch.backends.cuda, "allow_fp16_bf16_reduction_math_sdp", None)
    is_allowed = getattr(torch.backends.cuda, "fp16_bf16_reduction_math_sdp_allowed", None)
    with sdpa_kernel(SDPBackend.MATH):
        if allow is None or is_allowed is None:  # before torch 2.5 half inputs stay half
            yield
            return
        before = is_allowed()
        allow(True)  # or the products would be made in float32
        try:
            yield
        finally:
            allow(before)


def _when_half(native: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for half tensors, and the op itself for all others."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        tensors = [argument for argument in args if isinstance(argument, Tensor)]
        is_half = all(tensor.dtype == torch.float16 for tensor in tensors)
        return (function if is_half else native)(*args, **kwargs)

    return choose


def _rounded_once(native: Any) -> Callable[..., Any]:
    def compute(*args: Any, **kwargs: Any) -> Any:
        result = native(*(a.float() if isinstance(a, Tensor) else a for a in args), **kwargs)
        if isinstance(result, Tensor):
            return result.half()
        return tuple(None if item is None else item.half() for item in result)

    return compute


def _accumulate(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """total + a @ b, all float32 that hold half numbers, rounded to half after each group of products.

    The sums inside of the groups depend on nothing, so that many of them are made at once; only adding them up is done one by one.
    """
    length = a.shape[-1]
    num_whole = length // PRODUCTS_A_ROUND
    num_at_once = min(max(1, _NUMBERS_AT_ONCE // max(total.numel(), 1)), num_whole)
    if num_at_once > 1:
        rounded, size = torch.empty_like(total, dtype=torch.float16), PRODUCTS_A_ROUND
        total = total.clone()
        for first in range(0, num_whole, num_at_once):
            num = min(num_at_once, num_whole - first)
            taken = slice(first * size, (first + num) * size)
            rows = a[..., taken].unflatten(-1, (num, size)).movedim(-2, 0)
            columns = b[..., taken, :].unflatten(-2, (num, size)).movedim(-3, 0)
            for product in rows @ columns:
                total.copy_(rounded.copy_(total.add_(product)))
        a, b = a[..., num_whole * size :], b[..., num_whole * size :, :]
    for start in range(0, a.shape[-1], PRODUCTS_A_ROUND):
        end = start + PRODUCTS_A_ROUND
        total = (total + a[..., start:end] @ b[..., start:end, :]).half().float()
    return total


def _product(a: Tensor, b: Tensor) -> Tensor:
    shape = (*a.shape[:-1], b.shape[-1])
    return _accumulate(torch.zeros(shape, dtype=torch.float32), a.float(), b.float())


def _add(bias: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    if beta == 0:  # as torch: what is in bias, nan for example, does not count
        return (alpha * product).half()
    return (beta * bias.float() + alpha * product).half()


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return _product(a, b).half()


def _mv(a: Tensor, b: Tensor) -> Tensor:
    return _product(a, b.unsqueeze(-1)).squeeze(-1).half()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return _product(a.unsqueeze(0), b.unsqueeze(-1)).reshape(()).half()


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _add(bias, _product(a, b), beta, alpha)


def _addmv(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _add(bias, _product(a, b.unsqueeze(-1)).squeeze(-1), beta, alpha)


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    num_dims = x.dim() - 2
    strides, paddings, dilations = _each(num_dims, stride, padding, dilation)
    (extra,) = _each(num_dims, output_padding)
    if transposed:
        result = _transposed(x.float(), weight.float(), strides, paddings, dilations, extra, groups)
    else:
        result = _convolved(x.float(), weight.float(), strides, paddings, dilations, groups)
    if bias is not None:
        result = result + bias.float().reshape(-1, *[1] * num_dims)
    return result.half()


def _convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    num_dims = x.dim() - 2
    strides, paddings, dilations = _each(num_dims, stride, padding, dilation)
    g, given, w = gradient.float(), x.float(), weight.float()
    of_input = of_weight = of_bias = None
    if output_mask[0] and transposed:
        result = _convolved(g, w, strides, paddings, dilations, groups)
        of_input = result[_at(slice(size) for size in x.shape[2:])].half()
    elif output_mask[0]:
        reached = [
            (n - 1) * s - 2 * p + d * (k - 1) + 1
            for n, s, p, d, k in zip(g.shape[2:], strides, paddings, dilations, w.shape[2:], strict=True)
        ]
        extra = [size - there for size, there in zip(x.shape[2:], reached, strict=True)]
        of_input = _transposed(g, w, strides, paddings, dilations, extra, groups).half()
    if output_mask[1]:
        sent, received = (given, g) if transposed else (g, given)
        of_weight = _weight_gradient(sent, received, w.shape, strides, paddings, dilations, groups).half()
    if output_mask[2]:
        of_bias = g.sum((0, *range(2, g.dim()))).half()
    return of_input, of_weight, of_bias


def _convolved(
    x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """One product of matrices for each position in the kernel, as an IPU computes a convolution."""
    num, channels = x.shape[0], w.shape[0]
    padded = _pad(x, padding, padding)
    sizes = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, d, s in zip(padded.shape[2:], w.shape[2:], dilation, stride, strict=True)
    ]
    total = x.new_zeros(groups, channels // groups, num * _count(sizes))
    for position in itertools.product(*map(range, w.shape[2:])):
        columns = _columns(padded, position, sizes, stride, dilation, groups)
        tap = w[_at(position)].reshape(groups, channels // groups, -1)
        total = _accumulate(total, tap, columns)
    return total.reshape(channels, num, *sizes).transpose(0, 1).contiguous()


def _transposed(
    x: Tensor,
    w: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    extra: list[int],
    groups: int,
) -> Tensor:
    """A convolution of the input with zeros between its elements."""
    spread = x.new_zeros(*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True)))
    spread[_at(slice(None, None, s) for s in stride)] = x
    before = [d * (k - 1) - p for d, k, p in zip(dilation, w.shape[2:], padding, strict=True)]
    behind = [there + more for there, more in zip(before, extra, strict=True)]
    turned = w.flip(*range(2, w.dim())).reshape(groups, -1, *w.shape[1:]).transpose(1, 2)
    ones, none = [1] * len(stride), [0] * len(stride)
    return _convolved(_pad(spread, before, behind), turned.flatten(0, 1), ones, none, dilation, groups)


def _weight_gradient(
    sent: Tensor,
    received: Tensor,
    shape: torch.Size,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    sizes = list(sent.shape[2:])
    needed = [
        d * (k - 1) + (n - 1) * s + 1 - p
        for n, k, d, s, p in zip(sizes, shape[2:], dilation, stride, padding, strict=True)
    ]
    behind = [max(end - size, 0) for end, size in zip(needed, received.shape[2:], strict=True)]
    padded = _pad(received, padding, behind)
    rows = sent.transpose(0, 1).reshape(groups, shape[0] // groups, -1)
    found = sent.new_empty(shape)
    positions = list(itertools.product(*map(range, shape[2:])))
    num_at_once = max(1, 4 * _NUMBERS_AT_ONCE // max(rows.shape[-1] * padded.shape[1], 1))
    for first in range(0, len(positions), num_at_once):
        some = positions[first : first + num_at_once]
        seen = [_columns(padded, position, sizes, stride, dilation, groups) for position in some]
        products = _product(rows, torch.cat(seen, 1).transpose(1, 2)).chunk(len(some), 2)
        for position, product in zip(some, products, strict=True):
            found[_at(position)] = product.reshape(shape[0], shape[1])
    return found


def _columns(
    padded: Tensor,
    position: tuple[int, ...],
    sizes: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """[groups, channels of a group, images * places]: what one position of the kernel sees."""
    seen = tuple(
        slice(i * d, i * d + (n - 1) * s + 1, s)
        for i, d, n, s in zip(position, dilation, sizes, stride, strict=True)
    )
    patch = padded[_at(seen)]
    return patch.transpose(0, 1).reshape(groups, padded.shape[1] // groups, -1)


def _pad(x: Tensor, before: Sequence[int], behind: Sequence[int]) -> Tensor:
    pairs = zip(reversed(before), reversed(behind), strict=True)
    return F.pad(x, [size for pair in pairs for size in pair])


def _at(places: Iterable[Any]) -> tuple[Any, ...]:
    """An index of these places, in all images and channels."""
    return (slice(None), slice(None), *places)


def _count(sizes: Sequence[int]) -> int:
    number = 1
    for size in sizes:
        number *= size
    return number


def _each(num_dims: int, *lists: Sequence[int]) -> list[list[int]]:
    """One number a dimension: torch takes one for all of them, too."""
    return [list(items) * num_dims if len(items) == 1 else list(items) for items in lists]


_IN_HALF: dict[Any, Callable[..., Any]] = {
    aten.mm.default: _mm,
    aten.bmm.default: _mm,
    aten.mv.default: _mv,
    aten.dot.default: _dot,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _addmm,
    aten.addmv.default: _addmv,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
