"""Hand-picked ops, and habits of people who write models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vendor.case import B, Case, bools, floats, function, ints


def _elementwise() -> Iterator[Case]:
    for name in [
        "abs",
        "exp",
        "log",
        "log2",
        "log10",
        "log1p",
        "expm1",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "square",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfinv",
        "erfc",
        "sigmoid",
        "neg",
        "sign",
        "floor",
        "ceil",
        "round",
        "trunc",
        "frac",
        "lgamma",
        "digamma",
        "logit",
        "sinc",
        "exp2",
        "isnan",
        "isinf",
        "isfinite",
        "nan_to_num",
        "deg2rad",
        "positive",
    ]:
        yield function(f"torch.{name}", getattr(torch, name))
    for name in [
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "pow",
        "atan2",
        "fmod",
        "remainder",
        "floor_divide",
        "hypot",
        "logaddexp",
        "copysign",
        "xlogy",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
    ]:
        yield function(f"torch.{name}", getattr(torch, name), floats(8), floats(8))
    yield function("broadcast", lambda x, y: x[:, :, None] + y[:, None, :], floats(8), floats(5))
    yield function("pow(int)", lambda x: x**3)
    yield function("pow(half)", lambda x: x**0.5)
    yield function("scalar ** x", lambda x: 2.0**x)
    yield function("1 / x", lambda x: 1 / x)
    yield function("5 - x", lambda x: 5 - x)
    yield function("x // 2", lambda x: x // 2)
    yield function("x % 2", lambda x: x % 2)
    yield function("clamp", lambda x: x.clamp(0.2, 0.7))
    yield function("clamp(min)", lambda x: x.clamp(min=0.2))
    yield function("clamp(tensor)", lambda x, y: torch.clamp(x, y, y + 1), floats(8), floats(8))
    yield function("where", lambda x: torch.where(x > 0.5, x, -x))
    yield function("where(scalar)", lambda x: torch.where(x > 0.5, x, 0.0))
    yield function("masked_fill", lambda x: x.masked_fill(x > 0.5, float("-inf")).softmax(-1))
    yield function("lerp", lambda x, y: torch.lerp(x, y, 0.3), floats(8), floats(8))
    yield function("addcmul", lambda x, y: torch.addcmul(x, x, y), floats(8), floats(8))
    yield function("addcdiv", lambda x, y: torch.addcdiv(x, x, y), floats(8), floats(8))
    yield function("logical_and", lambda x: (x > 0.3) & (x < 0.7))
    yield function("logical_not", lambda x: ~(x > 0.3))
    yield function("logical_xor", lambda x, y: torch.logical_xor(x > 0.3, y > 0.3), floats(8), floats(8))


def _reductions() -> Iterator[Case]:
    x = floats(6, 8)
    yield function("sum", lambda x: x.sum(), x)
    yield function("sum(dim)", lambda x: x.sum(1), x)
    yield function("sum(dims)", lambda x: x.sum((0, 1), keepdim=True), x)
    yield function("sum(falling dims)", lambda x: x.sum((-1, -2)), x)
    yield function("mean", lambda x: x.mean(), x)
    yield function("mean(dim)", lambda x: x.mean(-1), x)
    yield function("mean(falling dims)", lambda x: x.mean((2, 1)), x)
    yield function("var", lambda x: x.var(-1), x)
    yield function("var(all)", lambda x: x.var(), x)
    yield function("var(biased)", lambda x: x.var(-1, unbiased=False, keepdim=True), x)
    yield function("std", lambda x: x.std(-1), x)
    yield function("var_mean", lambda x: torch.var_mean(x, -1), x)
    yield function("max(dim)", lambda x: x.max(-1)[0], x)
    yield function("max(all)", lambda x: x.max(), x)
    yield function("min(dim)", lambda x: x.min(1)[0], x)
    yield function("amax", lambda x: x.amax((1, 2)), x)
    yield function("amin", lambda x: x.amin(-1), x)
    yield function("aminmax", lambda x: torch.aminmax(x, dim=1), x)
    yield function("argmax", lambda x: x.argmax(-1), x)
    yield function("argmin", lambda x: x.argmin(-1), x)
    yield function("argsort", lambda x: x.argsort(-1), x)
    yield function("prod", lambda x: x.prod(-1), x)
    yield function("logsumexp", lambda x: x.logsumexp(-1), x)
    yield function("cumsum", lambda x: x.cumsum(-1), x)
    yield function("cumprod", lambda x: x.cumprod(-1), x)
    yield function("cummax", lambda x: x.cummax(-1)[0], x)
    yield function("logcumsumexp", lambda x: x.logcumsumexp(-1), x)
    yield function("norm", lambda x: x.norm(dim=-1), x)
    yield function("norm(1)", lambda x: x.norm(1, dim=-1), x)
    yield function("linalg.norm", lambda x: torch.linalg.vector_norm(x, dim=-1), x)
    yield function("all", lambda x: (x > 0.5).all(-1), x)
    yield function("any", lambda x: (x > 0.5).any(-1), x)
    yield function("count_nonzero", lambda x: torch.count_nonzero(x, -1), x)
    yield function("sort", lambda x: x.sort(-1)[0], x)
    yield function("sort(stable)", lambda x: torch.sort(x, stable=True)[0], x)
    yield function("topk", lambda x: x.topk(3, -1)[0], x)
    yield function("topk(indices)", lambda x: x.topk(3, -1), x)
    yield function("kthvalue", lambda x: x.kthvalue(3)[0], x)
    yield function("median", lambda x: x.median(-1)[0], x)
    yield function("quantile", lambda x: x.quantile(0.5, -1), x)
    yield function("mode", lambda x: x.mode(-1)[0], x)
    yield function("nansum", lambda x: x.nansum(-1), x)


def _shapes() -> Iterator[Case]:
    x = floats(6, 8)
    yield function("reshape", lambda x: x.reshape(B, -1), x)
    yield function("view", lambda x: x.view(B, 3, 2, 8), x)
    yield function("transpose", lambda x: x.transpose(1, 2), x)
    yield function("permute", lambda x: x.permute(2, 0, 1).contiguous(), x)
    yield function("squeeze", lambda x: x.unsqueeze(1).squeeze(1), x)
    yield function("expand", lambda x: x.unsqueeze(1).expand(B, 3, 6, 8), x)
    yield function("repeat", lambda x: x.repeat(1, 2, 1), x)
    yield function("repeat_interleave", lambda x: x.repeat_interleave(2, 1), x)
    yield function("tile", lambda x: x.tile(1, 1, 2), x)
    yield function("cat", lambda x: torch.cat((x, x), -1), x)
    yield function("stack", lambda x: torch.stack((x, x), 1), x)
    yield function("split", lambda x: x.split(3, 1)[0], x)
    yield function("split(sizes)", lambda x: x.split((2, 6), -1)[1], x)
    yield function("chunk", lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1], x)
    yield function("unbind", lambda x: x.unbind(1)[2], x)
    yield function("flip", lambda x: x.flip(1), x)
    yield function("flip(forward)", lambda x: x.flip(1), x, train=False)
    yield function("flip(first)", lambda x: x.flip(0), x)
    yield function("roll", lambda x: x.roll(1, 1), x)
    yield function("roll(forward)", lambda x: x.roll(1, 1), x, train=False)
    yield function("rot90", lambda x: x.rot90(1, (1, 2)), x)
    yield function("flatten", lambda x: x.flatten(1), x)
    yield function("unflatten", lambda x: x.unflatten(1, (2, 3)), x)
    yield function("movedim", lambda x: x.movedim(1, 2), x)
    yield function("swapaxes", lambda x: x.swapaxes(1, 2), x)
    yield function("unfold", lambda x: x.unfold(1, 2, 1), x)
    yield function("diagonal", lambda x: x.diagonal(0, 1, 2), x)
    yield function("diag_embed", lambda x: torch.diag_embed(x), x)
    yield function("tril", lambda x: x.tril(), x)
    yield function("triu", lambda x: x.triu(), x)
    yield function("triu(bool)", lambda x: (x > 0.5).triu(), x)
    yield function("trace", lambda x: x.trace(), floats(B))
    yield function("meshgrid", lambda x: torch.meshgrid(x[0], x[1], indexing="ij"))
    yield function("pad", lambda x: F.pad(x, (1, 2)), x)
    yield function("pad(negative)", lambda x: F.pad(x, (-1, 0)), x)
    yield function("pad(reflect)", lambda x: F.pad(x, (1, 1), mode="reflect"), x)
    yield function("as_strided", lambda x: x.as_strided((B, 3), (6, 1)), x)
    yield function("tensor_split", lambda x: torch.tensor_split(x, 3, -1)[1], x)


def _indexing() -> Iterator[Case]:
    x = floats(6, 8)
    yield function("x[:, 1]", lambda x: x[:, 1], x)
    yield function("x[:, 1:4]", lambda x: x[:, 1:4], x)
    yield function("x[:, ::2]", lambda x: x[:, ::2], x)
    yield function("x[..., -1]", lambda x: x[..., -1], x)
    yield function("x[:, None]", lambda x: x[:, None], x)
    yield function("x[index]", lambda x, i: x[i], x, ints())
    yield function("x[index 2-D]", lambda x, i: x[i], x, ints(3))
    yield function("x[:, index]", lambda x, i: x[:, i], x, ints())
    yield function("x[i, j]", lambda x, i: x[i, i], x, ints())
    yield function("x[arange, j]", lambda x, i: x[torch.arange(B, device=x.device), i], x, ints())
    yield function("x[:, list]", lambda x: x[:, [0, 2, 1]], x)
    yield function("x[list]", lambda x: x[[0, 2, 1]], x)
    yield function("x[mask]", lambda x: x[x > 0.5], x)
    yield function("index_select(0)", lambda x, i: x.index_select(0, i), x, ints())
    yield function("index_select(1)", lambda x, i: x.index_select(1, i), x, ints())
    yield function("index_select(1, forward)", lambda x, i: x.index_select(1, i), x, ints(), train=False)
    yield function("gather", lambda x, i: x.gather(1, i), x, ints(6, 8))
    yield function("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), x, ints(6, 8))
    yield function("take", lambda x, i: x.take(i), x, ints())
    yield function("scatter", lambda x, i: torch.zeros_like(x).scatter(1, i, x), x, ints(6, 8))
    yield function("scatter(value)", lambda x, i: x.scatter(1, i, 2.0), x, ints(6, 8))
    yield function("scatter_add", lambda x, i: torch.zeros_like(x).scatter_add(1, i, x), x, ints(6, 8))
    yield function("scatter_reduce(amax)", lambda x, i: x.scatter_reduce(1, i, x, "amax"), x, ints(6, 8))
    yield function("index_add", lambda x, i: torch.zeros_like(x).index_add(0, i, x), x, ints())
    yield function(
        "index_add(1)", lambda x, i: torch.zeros_like(x[:, :B]).index_add(1, i, x[:, :B]), x, ints()
    )
    yield function("index_fill", lambda x, i: x.index_fill(1, i, 0.0), x, ints())
    yield function("index_copy", lambda x, i: x.index_copy(0, i, x), x, ints())
    yield function("masked_select", lambda x: x.masked_select(x > 0.5), x)
    yield function("masked_scatter", lambda x: x.masked_scatter(x > 0.5, x * 2), x)
    yield function("nonzero", lambda x: x.nonzero(), x)
    yield function("where(one argument)", lambda x: torch.where(x > 0.5)[0], x)
    yield function("unique", lambda x: x.unique(), x)
    yield function("one_hot", lambda i: F.one_hot(i, 5), ints(6))
    yield function(
        "one_hot(compare)", lambda i: (i[..., None] == torch.arange(5, device=i.device)).float(), ints(6)
    )
    yield function("bincount", lambda i: torch.bincount(i.flatten(), minlength=5), ints(6))
    yield function("searchsorted", lambda x: torch.searchsorted(x, x), x)
    yield function("bucketize", lambda x: torch.bucketize(x, x[0, 0]), x)
    yield function("histc", lambda x: torch.histc(x, 5), x)
    yield function("isin", lambda i: torch.isin(i, i[0]), ints(6))


def _in_place() -> Iterator[Case]:
    x = floats(6, 8)
    yield function("add_", lambda x: (x * 2).add_(1), x)
    yield function("mul_", lambda x: (x * 2).mul_(x), x)
    yield function("relu_", lambda x: (x * 2).relu_(), x)
    yield function("exp_", lambda x: (x * 2).exp_(), x)
    yield function("exp_(half)", lambda x: F.linear(x, x[0]).exp_(), x)
    yield function("pow_", lambda x: (x * 2).pow_(2), x)
    yield function("clamp_", lambda x: (x * 2).clamp_(0, 1), x)
    yield function("sqrt_", lambda x: (x * 2).sqrt_(), x)
    yield function("atan_", lambda x: (x * 2).atan_(), x)
    yield function("zero_", lambda x: x * (x * 1).zero_(), x)
    yield function("fill_", lambda x: x * (x * 1).fill_(2.0), x)
    yield function("masked_fill_", lambda x: (x * 2).masked_fill_(x > 0.5, 0.0), x)
    yield function("copy_", lambda x: torch.zeros_like(x).copy_(x), x)
    yield function("+=", _iadd, x)
    yield function("x[:, 0] = 1", _assign_slice, x)
    yield function("x[:, 1:3] = y", _assign_range, x)
    yield function("x[index] = y", _assign_index, x, ints())
    yield function("x[mask] = 0", _assign_mask, x)
    yield function("transpose_", lambda x: (x * 2).transpose_(1, 2), x)
    yield function("unsqueeze_", lambda x: (x * 2).unsqueeze_(1), x)
    yield function("scatter_", lambda x, i: torch.zeros_like(x).scatter_(1, i, 1.0) * x, x, ints(6, 8))
    yield function("dropout(inplace)", lambda x: F.dropout(x * 2, 0.5, True, True), x)


def _iadd(x: Tensor) -> Tensor:
    y = x * 2
    y += x
    y *= 3
    return y


def _assign_slice(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 0] = 1.0
    return y


def _assign_range(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 1:3] = x[:, :2]
    return y


def _assign_index(x: Tensor, index: Tensor) -> Tensor:
    y = x * 2
    y[index] = x
    return y


def _assign_mask(x: Tensor) -> Tensor:
    y = x * 2
    y[x > 0.5] = 0.0
    return y


def _matrices() -> Iterator[Case]:
    x = floats(6, 8)
    yield function("matmul", lambda x: x @ x.transpose(1, 2), x)
    yield function("mm", lambda x: x @ x.t())
    yield function("mv", lambda x: torch.mv(x, x[0]))
    yield function("x @ vector", lambda x: x @ x[0, 0], x)
    yield function("bmm", lambda x: torch.bmm(x, x.transpose(1, 2)), x)
    yield function("baddbmm", lambda x: torch.baddbmm(x[:, :, :6], x, x.transpose(1, 2)), x)
    yield function("addmm", lambda x: torch.addmm(x[:, :B], x, x.t()))
    yield function("einsum", lambda x: torch.einsum("bij,bkj->bik", x, x), x)
    yield function("einsum(outer)", lambda x: torch.einsum("bi,bj->bij", x, x))
    yield function("einsum(4-D)", lambda x: torch.einsum("bhid,bhjd->bhij", x, x), floats(2, 6, 8))
    yield function("tensordot", lambda x: torch.tensordot(x, x, ([1, 2], [1, 2])), x)
    yield function("outer", lambda x: torch.outer(x[0], x[1]))
    yield function("dot", lambda x: torch.dot(x[0], x[1]))
    yield function("cdist", lambda x: torch.cdist(x, x), x)
    yield function("cross", lambda x: torch.linalg.cross(x, x + 1), floats(6, 3))
    yield function("inverse", lambda x: torch.linalg.inv(x @ x.transpose(1, 2)), x)
    yield function("det", lambda x: torch.linalg.det(x @ x.transpose(1, 2)), x)
    yield function("svd", lambda x: torch.linalg.svdvals(x), x)
    yield function("qr", lambda x: torch.linalg.qr(x)[0], x)
    yield function(
        "cholesky", lambda x: torch.linalg.cholesky(x @ x.transpose(1, 2) + torch.eye(6, device=x.device)), x
    )
    yield function("eigh", lambda x: torch.linalg.eigvalsh(x @ x.transpose(1, 2)), x)
    yield function("solve", lambda x: torch.linalg.solve(x[:, :, :6], x), x)
    yield function("fft", lambda x: torch.fft.rfft(x).real, x)
    yield function(
        "stft", lambda x: torch.stft(x, 4, window=torch.ones(4, device=x.device), return_complex=True).abs()
    )


def _dtypes() -> Iterator[Case]:
    yield function("double", lambda x: x.double())
    yield function("half", lambda x: x.half() * 2)
    yield function("bfloat16", lambda x: x.bfloat16() * 2)
    yield function("int8", lambda x: x.to(torch.int8))
    yield function("uint8", lambda x: x.to(torch.uint8))
    yield function("int16", lambda x: x.to(torch.int16))
    yield function("int32", lambda x: (x * 9).int() + 1)
    yield function("int64", lambda i: i * 2 + 1, ints(6))
    yield function("int64 // 2", lambda i: i // 2, ints(6))
    yield function("int64 % 2", lambda i: i % 2, ints(6))
    yield function("int64 & 1", lambda i: i & 1, ints(6))
    yield function("int32 & 1", lambda i: i.int() & 1, ints(6))
    yield function("int64 << 1", lambda i: i << 1, ints(6))
    yield function("int64 sum", lambda i: i.sum(-1), ints(6))
    yield function("int64 max", lambda i: i.max(-1)[0], ints(6))
    yield function("int64 cumsum", lambda i: i.cumsum(-1), ints(6))
    yield function("int64 compare", lambda i: (i == 1).float(), ints(6))
    yield function("int64 where", lambda i: torch.where(i > 1, i, -i), ints(6))
    yield function("bool sum", lambda m: m.sum(-1), bools(6))
    yield function("bool * float", lambda x, m: x * m, floats(6), bools(6))
    yield function("half + float", lambda x: F.linear(x, x) + x[:, :B])
    yield function("half sub float", lambda x: torch.sub(F.linear(x, x), x[:, :B]))
    yield function("half where float", lambda x: torch.where(x[:, :B] > 0.5, F.linear(x, x), x[:, :B]))
    yield function("half max float", lambda x: torch.maximum(F.linear(x, x), x[:, :B]))
    yield function("half cat float", lambda x: torch.cat((F.linear(x, x), x), -1))
    yield function(
        "half bmm float",
        lambda x: torch.bmm(F.linear(x, x).unsqueeze(1), x.unsqueeze(1).transpose(0, 1).expand(B, B, 8)),
    )
    yield function("half softmax", lambda x: F.linear(x, x).softmax(-1))
    yield function("half sum", lambda x: F.linear(x, x).sum(-1))
    yield function("half var", lambda x: F.linear(x, x).var(-1))
    yield function("complex", lambda x: torch.complex(x, x).abs())
    yield function("type_as", lambda x: torch.ones(8, device=x.device).type_as(x) * x)
    yield function("x.type(dtype)", lambda x: x.type(torch.float16))


def _made_inside() -> Iterator[Case]:
    yield function("arange", lambda x: x * torch.arange(8, device=x.device))
    yield function("arange(float)", lambda x: x * torch.arange(0, 8, 1.0, device=x.device))
    yield function("linspace", lambda x: x * torch.linspace(0, 1, 8, device=x.device))
    yield function("eye", lambda x: x @ torch.eye(8, device=x.device))
    yield function("zeros", lambda x: x + torch.zeros(8, device=x.device))
    yield function("ones_like", lambda x: x + torch.ones_like(x))
    yield function("full", lambda x: x + torch.full((8,), 0.5, device=x.device))
    yield function("full(int value)", lambda x: x + torch.full((8,), 1, device=x.device, dtype=torch.float32))
    yield function("full_like", lambda x: x + torch.full_like(x, 2.0))
    yield function("new_zeros", lambda x: x + x.new_zeros(8))
    yield function("new_tensor", lambda x: x * x.new_tensor([1.0] * 8))
    yield function("tensor", lambda x: x * torch.tensor(2.0, device=x.device))
    yield function("tensor(list)", lambda x: x * torch.tensor([2.0] * 8, device=x.device))
    yield function("causal mask", lambda x: x + torch.triu(torch.full((8, 8), -1e4, device=x.device), 1)[0])
    yield function(
        "causal mask(bool)", lambda x: x.masked_fill(torch.ones(B, 8, device=x.device).tril() == 0, -1e4)
    )
    yield function("rand_like", lambda x: x + torch.rand_like(x))
    yield function("randn", lambda x: x + torch.randn(8, device=x.device))
    yield function("randn_like", lambda x: x + torch.randn_like(x))
    yield function("randint", lambda x: x + torch.randint(0, 5, (8,), device=x.device))
    yield function("randperm", lambda x: x + torch.randperm(8, device=x.device))
    yield function("bernoulli", lambda x: torch.bernoulli(x.detach()) * x)
    yield function("normal_", lambda x: x + torch.empty_like(x).normal_())
    yield function("uniform_", lambda x: x + torch.empty_like(x).uniform_())
    yield function("multinomial", lambda x: torch.multinomial(x.detach(), 2))
    yield function("sinusoidal positions", _sinusoids, floats(6, 8))


def _sinusoids(x: Tensor) -> Tensor:
    place = torch.arange(x.shape[1], device=x.device).unsqueeze(1)
    rate = torch.exp(torch.arange(0, 8, 2, device=x.device) * (-math.log(10000.0) / 8))
    table = torch.zeros(x.shape[1], 8, device=x.device)
    table[:, 0::2] = torch.sin(place * rate)
    table[:, 1::2] = torch.cos(place * rate)
    return x + table


def _habits() -> Iterator[Case]:
    yield function("item", lambda x: x * x.sum().item())
    yield function("float(x)", lambda x: x * float(x.sum()))
    yield function("if tensor", lambda x: x if x.sum() > 0 else -x)
    yield function("slice by a tensor", lambda x, i: x[:, : i.max() + 1], floats(8), ints())
    yield function("tolist", lambda x, i: x * i.tolist()[0], floats(8), ints())
    yield function("print", _prints)
    yield function("cpu", lambda x: x.cpu().to(x.device))
    yield function("numpy", lambda x: x * float(x.detach().cpu().numpy().sum()))
    yield function("detach", lambda x: x * x.detach())
    yield function("data", lambda x: x * x.data)
    yield function("no_grad", _without_gradient)
    yield function("unused op without a kernel", _drops_fft)
    yield function("unused op that is not lowered", _drops_mv)
    yield function("python loop", _loops)
    yield Case("gradient penalty", _Penalty, (floats(8),))
    yield Case("custom autograd function", lambda: _Straight(), (floats(8),))
    yield Case("tied weights", _Tied, (ints(6, below=9),))
    yield Case("buffer updated in place", _Counts, (floats(8),))
    yield Case("weight frozen", _Frozen, (floats(8),))
    yield Case("mlp", _mlp, (floats(8), ints()))
    yield Case("small cnn", _cnn, (floats(1, 12, 12), ints()))
    yield Case("residual half", _Residual, (floats(8),))


def _prints(x: Tensor) -> Tensor:
    print(x.sum())
    return x


def _without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.norm()
    return x / scale


def _drops_fft(x: Tensor) -> Tensor:
    torch.fft.rfft(x)
    return x


def _drops_mv(x: Tensor) -> Tensor:
    torch.mv(x.detach(), x[0].detach())
    return x


def _loops(x: Tensor) -> Tensor:
    state = torch.zeros_like(x[:, 0])
    for i in range(8):
        state = torch.tanh(state + x[:, i])
    return state


class _Penalty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        x.requires_grad_()
        (slope,) = torch.autograd.grad(self.linear(x).tanh().float().sum(), x, create_graph=True)
        return slope.float().pow(2).sum()


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 2


class _Straight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return _StraightThrough.apply(self.linear(x)).float().pow(2).mean()


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.embedding(tokens))
        return F.cross_entropy(logits[:, :-1].reshape(-1, 9), tokens[:, 1:].reshape(-1))


class _Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).float()
        self.average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return (y - self.average).pow(2).mean()


class _Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).float().pow(2).mean()


class _Classifier(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), labels)


def _mlp() -> nn.Module:
    return _Classifier(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3)))


def _cnn() -> nn.Module:
    return _Classifier(
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(100, 3)
        )
    )


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.down(F.gelu(self.up(self.norm(x))))
        return y.float().pow(2).mean()


OP_FAMILIES: tuple[Callable[[], Iterator[Case]], ...] = (
    _elementwise,
    _reductions,
    _shapes,
    _indexing,
    _in_place,
    _matrices,
    _dtypes,
    _made_inside,
    _habits,
)
