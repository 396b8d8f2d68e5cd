"""Ops that the Cerebras SDK decomposes before autograd, so that autograd differentiates the parts.

The SDK registers Python decompositions for its device above autograd. While a step is captured we register ours, which call the
same ops, for the CPU's fake tensors; so a `flip` shows as the `index_select` that it becomes there, backward included. Which ops
are decomposed, and into what, are facts about SDK 2.10.0; the values computed do not matter here.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

aten = torch.ops.aten


def acos(x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    is_negative = (wide < 0).float()
    magnitude = wide.abs()
    series = _arc_series(magnitude) * torch.sqrt(1.0 - magnitude)
    series = series - 2 * is_negative * series
    return (is_negative * math.pi + series).to(x.dtype)


def asin(x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    is_negative = (wide < 0).float()
    magnitude = wide.abs()
    series = math.pi / 2 - torch.sqrt(1.0 - magnitude) * _arc_series(magnitude)
    return (series - 2.0 * is_negative * series).to(x.dtype)


def _arc_series(x: Tensor) -> Tensor:
    return ((-0.02 * x + 0.07) * x - 0.21) * x + 1.57


def logsumexp(x: Tensor, dim: int | Sequence[int], keepdim: bool = False) -> Tensor:
    dims = tuple(dim) if isinstance(dim, Iterable) else (dim,)
    if x.numel() == 0:
        return torch.sum(torch.exp(x), dims, keepdim).log()
    largest = torch.amax(torch.real(x), dims, keepdim=True)
    largest = torch.masked_fill(largest, largest.abs() == math.inf, 0)
    total = torch.sum(torch.exp(x - largest), dims, keepdim)
    return total.log().add(largest if keepdim else torch.amax(largest, dims))


def glu(x: Tensor, dim: int = -1) -> Tensor:
    left, gate = torch.tensor_split(x, 2, dim)
    return left * torch.sigmoid(gate)


def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    def compute(grad: Tensor, x: Tensor) -> Tensor:
        grown = (x * beta).exp()
        return torch.where((x * beta) > threshold, grad, grad * grown / (grown + 1.0))

    return _computed_wide(compute, grad, x)


def _computed_wide(compute: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Computes half precision in single precision, as torch's own decompositions do."""
    dtype = tensors[0].dtype
    if dtype not in (torch.float16, torch.bfloat16):
        return compute(*tensors)
    return compute(*(tensor.to(torch.float32) for tensor in tensors)).to(dtype)


def var(
    x: Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    dims = [] if dim is None else list(dim) if isinstance(dim, Iterable) else [dim]
    count = math.prod(x.shape[d] for d in dims) if dims else x.numel()
    centred = x - aten.mean(x, dims, True)
    total: Tensor = aten.sum(centred * centred, dims, keepdim)
    return total / max(0.0, count - (1 if correction is None else correction))


def std(
    x: Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    dims = list(dim) if isinstance(dim, Iterable) else dim
    return torch.sqrt(torch.var(wide, dims, correction=correction, keepdim=keepdim)).to(x.dtype)


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(torch.squeeze(piece, dim) for piece in torch.tensor_split(x, x.shape[dim], dim))


def squeeze_dims(x: Tensor, dim: Sequence[int]) -> Tensor:
    dropped = {d % max(x.dim(), 1) for d in dim}
    shape = [size for d, size in enumerate(x.shape) if not (d in dropped and size == 1)]
    return aten.view(x, shape) if shape != list(x.shape) else x


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    height, width = x.shape[-2:]
    rows = torch.arange(height, device=x.device, dtype=x.dtype) + 1
    columns = torch.arange(width, device=x.device, dtype=x.dtype)
    if height == width and x.dim() == 2:
        mask = (rows.view(-1, 1) - 1) <= columns - diagonal
    else:
        mask = (
            torch.arange(width, device=x.device).unsqueeze(-2).to(x.dtype)
            - torch.arange(height, device=x.device).unsqueeze(-1).to(x.dtype)
        ) >= diagonal
    if x.dtype == torch.bool:
        return mask.logical_and(x).contiguous()
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device)).contiguous()


def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in dims:
        x = torch.index_select(x, dim, torch.arange(x.size(dim) - 1, -1, -1, device=x.device))
    return x


def roll(x: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Tensor:
    by = tuple(shifts) if isinstance(shifts, Iterable) else (shifts,)
    along = tuple(dims) if isinstance(dims, Iterable) else (dims,)
    if x.numel() == 0:
        return x.clone()
    if not along:
        return torch.roll(torch.flatten(x), by, 0).view(x.shape)
    if len(along) > 1:
        return torch.roll(torch.roll(x, (by[0],), along[0]), by[1:], along[1:])
    size = x.shape[along[0]]
    start = (size - by[0]) % size
    index = torch.arange(size, device=x.device)
    return x.index_select(along[0], torch.fmod(start + index, size))


def reflection_pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    dim = len(padding) // 2
    result = x
    for i in range(dim):
        before, after = padding[2 * (dim - 1 - i)], padding[2 * (dim - 1 - i) + 1]
        last = x.shape[i - dim] - 1
        place = torch.arange(-before, last + 1 + after, device=x.device)
        index: list[Tensor | None] = [None] * result.dim()
        index[i + x.dim() - dim] = last - (last - place.abs()).abs()
        result = aten._unsafe_index(result, index)
    return result.contiguous()


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    return _index_add(aten.index_put, x, dim, index, source, alpha)


def index_add_(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    _index_add(aten.index_put_, x, dim, index, source, alpha)
    return x


def _index_add(put: Any, x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float) -> Tensor:
    added = source * alpha if alpha != 1 else source
    is_scalar = x.dim() == 0
    result = put(
        x.unsqueeze(0) if is_scalar else x,
        (None,) * (dim % max(x.dim(), 1)) + (index,),
        added,
        accumulate=True,
    )
    return result.squeeze(0) if is_scalar else result  # type: ignore[no-any-return]


def cdist(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    if abs(p - 2.0) < 1e-7 and compute_mode == 1:
        squares = x.pow(2).sum(dim=-1, keepdim=True)
        others = y.pow(2).sum(dim=-1, keepdim=True)
        products = torch.matmul(x, y.transpose(-1, -2).contiguous())
        return (squares + others.transpose(-2, -1) - 2 * products).clamp_min(0.0).sqrt()
    left, right = x.unsqueeze(-2), y.unsqueeze(-3)
    if p == 0:
        return (left != right).to(torch.float32).sum(dim=-1)
    powers = (left - right).abs().pow(p).sum(dim=-1)
    return powers.sqrt() if abs(p - 2.0) < 1e-7 else powers.pow(1.0 / p)


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    norm = v.norm(2, tuple(d for d in range(v.dim()) if d != dim), keepdim=True)
    return v * (g / norm.to(g.dtype)), norm


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention by matmul and softmax, since the front end has no fused kernel."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(
            attn_mask.logical_not(), -math.inf
        )
    factor = math.sqrt(scale if scale is not None else 1 / math.sqrt(query.shape[-1]))
    scores = aten.matmul(query * factor, key.transpose(-2, -1) * factor)
    if attn_mask is not None:
        scores = aten.add(scores, attn_mask)
    weights = aten.softmax(scores, -1)
    return aten.matmul(torch.dropout(weights, dropout_p, True) if dropout_p > 0 else weights, value)  # type: ignore[no-any-return]


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """one_hot with torch's check of the classes, which reads them on the host."""
    if num_classes == -1:
        num_classes = int(x.max().item()) + 1
    elif x.min().item() < 0:
        raise RuntimeError("a class is negative")
    return (x.unsqueeze(-1) == torch.arange(num_classes, device=x.device)).to(torch.int64)


class _Opaque(torch.autograd.Function):
    """Keeps an op that torch would decompose as one node, and gives its inputs any gradient."""

    @staticmethod
    def forward(ctx: Any, op: Any, *flat: Any) -> Any:
        spec, *leaves = flat
        ctx.shapes = leaves
        with torch._C._AutoDispatchBelowAutograd():
            return op(*tree_unflatten(leaves, spec))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        given = (
            torch.zeros_like(x) if isinstance(x, Tensor) and x.requires_grad else None for x in ctx.shapes
        )
        return (None, None, *given)


def _opaque(op: Any) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        leaves, spec = tree_flatten(args)
        # The op is refused in any case; one precision lets the capture go on.
        if len({x.dtype for x in leaves if isinstance(x, Tensor) and x.is_floating_point()}) > 1:
            leaves = [x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in leaves]
        return _Opaque.apply(op, spec, *leaves)  # type: ignore[no-untyped-call]

    return call


RECURRENT = ("lstm", "gru")  # the SDK's mixed precision fails inside them, on aten::set_

DECOMPOSED: dict[str, Callable[..., Any]] = {
    "acos": acos,
    "acosh": lambda x: torch.log(x + torch.sqrt(x**2 - 1)),
    "angle": lambda x: torch.atan2(torch.zeros(x.size(), dtype=x.dtype, device=x.device), x),
    "asin": asin,
    "atan": lambda x: torch.atan2(x, torch.ones(1, dtype=x.dtype, device=x.device)),
    "cdist": cdist,
    "cosh": lambda x: (torch.exp(x) + torch.exp(-x)) / 2,
    "dot": lambda x, y: (x * y).sum(),
    "expm1": lambda x: torch.exp(x) - 1,
    "flip": flip,
    "glu": glu,
    "hardswish": lambda x: _computed_wide(
        lambda wide: wide * torch.clamp(torch.clamp(wide + 3, min=0), max=6) / 6, x
    ),
    "index_add": index_add,
    "index_add_": index_add_,
    "log10": lambda x: torch.log(x) * (1 / math.log(10)),
    "log1p": lambda x: torch.log(x + 1),
    "log2": lambda x: torch.log(x) * (1 / math.log(2)),
    "logsumexp": logsumexp,
    "reflection_pad1d": reflection_pad,
    "reflection_pad2d": reflection_pad,
    "roll": roll,
    "sinh": lambda x: (torch.exp(x) - torch.exp(-x)) / 2,
    "softplus_backward": softplus_backward,
    "squeeze.dims": squeeze_dims,
    "std.correction": std,
    "tan": lambda x: torch.sin(x) / torch.cos(x),
    "triu": triu,
    "unbind.int": unbind,
    "var.correction": var,
    "_weight_norm_interface": weight_norm,
    "one_hot": one_hot,
    "scaled_dot_product_attention": attention,
    **{
        f"{name}.{form}": _opaque(getattr(getattr(aten, name), form))
        for name in RECURRENT
        for form in ("input", "data")
    },
}


@contextlib.contextmanager
def decompositions() -> Iterator[None]:
    """Within, the ops above are decomposed before autograd on the CPU."""
    library = torch.library.Library("aten", "IMPL", "AutogradCPU")  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Oo]verriding.*")
            for op, function in DECOMPOSED.items():
                library.impl(op, function)  # type: ignore[no-untyped-call]
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
