"""A small call for each API name of PopTorch's list, to see which aten ops it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

Sample = Callable[[], Any]

UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor frac log log10 log1p log2 neg reciprocal round rsqrt "
    "sigmoid sign sin sinh sqrt square tan tanh trunc all any argmax argmin count_nonzero mean prod sum std std_mean var var_mean "
    "median amax amin isnan argsort sort full_like max min norm"
)
BINARY = "add div floor_divide fmod mul pow remainder sub true_divide eq ge gt le lt ne"
LOGICAL = "bitwise_and bitwise_or bitwise_xor logical_and logical_or"
ACTIVATIONS = (
    "ELU CELU GELU Hardshrink LeakyReLU LogSoftmax Mish ReLU SELU SiLU Sigmoid Softmax Softplus Softsign Softshrink Tanh PReLU "
    "RReLU Hardtanh"
)


# Inputs and modules are made unseen by the recorder: what counts is the call alone.
def _x(*shape: int) -> Tensor:
    with _disable_current_modes():
        return torch.rand(shape or (4, 6)).mul(0.8).add(0.1).requires_grad_()


def _plain(*shape: int) -> Tensor:
    with _disable_current_modes():
        return torch.rand(shape or (4, 6)).mul(0.8).add(0.1)


def _ints(high: int, *shape: int, low: int = 0) -> Tensor:
    with _disable_current_modes():
        return torch.randint(low, high, shape)


def _bools(*shape: int) -> Tensor:
    with _disable_current_modes():
        return torch.randint(2, shape).bool()


def _signs(*shape: int) -> Tensor:
    with _disable_current_modes():
        return torch.randint(2, shape) * 2.0 - 1


def _make(kind: str, *args: Any, **settings: Any) -> nn.Module:
    with _disable_current_modes():
        module: nn.Module = getattr(nn, kind)(*args, **settings)
        return module


def _module(kind: str, *args: Any, shape: tuple[int, ...], **settings: Any) -> Sample:
    return lambda: _make(kind, *args, **settings)(_x(*shape))


def _weight_normed() -> nn.Module:
    with _disable_current_modes():
        module: nn.Module = torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))
        return module


def _over_dims(num_dims: int) -> tuple[int, ...]:
    return (2, 4, *(6,) * num_dims)


def samples() -> dict[str, Sample]:
    made: dict[str, Sample] = {}
    for name in UNARY.split():
        made[f"torch.{name}"] = lambda name=name: getattr(torch, name)(_x())
    for name in BINARY.split():
        made[f"torch.{name}"] = lambda name=name: getattr(torch, name)(_x(), _x())
    for name in LOGICAL.split():
        made[f"torch.{name}"] = lambda name=name: getattr(torch, name)(_bools(4), _bools(4))
    for name in ACTIVATIONS.split():
        settings: dict[str, Any] = {"dim": -1} if "Softmax" in name else {}
        made[f"torch.nn.{name}"] = _module(name, shape=(4, 6), **settings)
    made |= _creation() | _indexing() | _random() | _mathematics() | _layers() | _losses()
    made["torch.full_like"] = lambda: torch.full_like(_x(), 2.0)
    return made


def _creation() -> dict[str, Sample]:
    return {
        "torch.arange": lambda: torch.arange(6),
        "tensor.fill": lambda: _plain().fill_(2.0),
        "torch.full": lambda: torch.full((2, 3), 1.5),
        "torch.Tensor.new_ones": lambda: _x().new_ones((2,)),
        "torch.Tensor.new_zeros": lambda: _x().new_zeros((2,)),
        "torch.ones": lambda: torch.ones(2),
        "torch.ones_like": lambda: torch.ones_like(_x()),
        "torch.zeros": lambda: torch.zeros(2),
        "torch.zeros_like": lambda: torch.zeros_like(_x()),
    }


def _indexing() -> dict[str, Sample]:
    return {
        "torch.bincount": lambda: torch.bincount(_ints(5, 8), minlength=5),
        "torch.bucketize": lambda: torch.bucketize(_x(), _plain(3)),
        "torch.cat": lambda: torch.cat([_x(), _x()]),
        "torch.chunk": lambda: torch.chunk(_x(), 2)[0],
        "torch.gather": lambda: torch.gather(_x(), 1, _ints(4, 4, 6)),
        "torch.index_select": lambda: torch.index_select(_x(), 1, _ints(4, 3)),
        "torch.index_reduce": lambda: torch.index_reduce(_plain(), 0, _ints(4, 4), _plain(), "mean"),
        "torch.reshape": lambda: torch.reshape(_x(), (2, 12)),
        "torch.roll": lambda: torch.roll(_x(), 1, 0),
        "torch.scatter": lambda: torch.scatter(_x(), 1, _ints(4, 4, 6), _x()),
        "torch.scatter_add": lambda: torch.scatter_add(_x(), 1, _ints(4, 4, 6), _x()),
        "torch.scatter_reduce": lambda: torch.scatter_reduce(_x(), 1, _ints(4, 4, 6), _x(), "amax"),
        "torch.stack": lambda: torch.stack([_x(), _x()]),
        "torch.split": lambda: torch.split(_x(), 2)[0],
        "torch.squeeze": lambda: torch.squeeze(_x(1, 4), 0),
        "torch.t": lambda: torch.t(_x()),
        "torch.take_along_dim": lambda: torch.take_along_dim(_x(), _ints(4, 4, 6), 1),
        "torch.transpose": lambda: torch.transpose(_x(), 0, 1),
        "torch.unbind": lambda: torch.unbind(_x())[0],
        "torch.unsqueeze": lambda: torch.unsqueeze(_x(), 0),
        "torch.where": lambda: torch.where(_bools(4, 6), _x(), _x()),
        "tensor.expand": lambda: _x(1, 6).expand(4, 6),
        "tensor.expand_as": lambda: _x(1, 6).expand_as(_x()),
        "tensor.masked_fill": lambda: _x().masked_fill(_bools(4, 6), 0.0),
        "tensor.index_fill_": lambda: _plain().index_fill_(0, _ints(4, 2), 0.0),
    }


def _random() -> dict[str, Sample]:
    one = torch.ones(())
    two, half = one + 1, one / 2
    return {
        "torch.bernoulli": lambda: torch.bernoulli(_plain(4)),
        "torch.distributions.Bernoulli": lambda: torch.distributions.Bernoulli(
            probs=half, validate_args=False
        ).sample((4,)),
        "torch.randn": lambda: torch.randn(4),
        "torch.normal": lambda: torch.normal(_plain(4), _plain(4)),
        "torch.distributions.Normal": lambda: torch.distributions.Normal(
            one, one, validate_args=False
        ).rsample((4,)),
        "torch.rand": lambda: torch.rand(4),
        "torch.uniform": lambda: _plain(4).uniform_(),
        "torch.distributions.Uniform": lambda: torch.distributions.Uniform(
            one, two, validate_args=False
        ).rsample((4,)),
        "torch.exponential": lambda: _plain(4).exponential_(),
        "torch.distributions.Exponential": lambda: torch.distributions.Exponential(
            one, validate_args=False
        ).rsample((4,)),
        "torch.randperm": lambda: torch.randperm(6),
    }


def _mathematics() -> dict[str, Sample]:
    return {
        "torch.addcdiv": lambda: torch.addcdiv(_x(), _x(), _x()),
        "torch.bitwise_not": lambda: torch.bitwise_not(_ints(2, 4)),
        "torch.cdist": lambda: torch.cdist(_x(), _x()),
        "torch.clamp": lambda: torch.clamp(_x(), 0.2, 0.5),
        "torch.clamp_max": lambda: torch.clamp_max(_x(), 0.5),
        "torch.clamp_min": lambda: torch.clamp_min(_x(), 0.5),
        "torch.logsumexp": lambda: torch.logsumexp(_x(), 1),
        "torch.topk": lambda: torch.topk(_x(), 2)[0],
        "torch.max": lambda: (torch.max(_x()), torch.max(_x(), 1)[0], torch.max(_x(), _x())),
        "torch.min": lambda: (torch.min(_x()), torch.min(_x(), 1)[0], torch.min(_x(), _x())),
        "torch.linalg.norm": lambda: torch.linalg.norm(_x()),
        "torch.linalg.matrix_norm": lambda: torch.linalg.matrix_norm(_x()),
        "torch.linalg.vector_norm": lambda: torch.linalg.vector_norm(_x()),
        "torch.cumsum": lambda: torch.cumsum(_x(), 0),
        "torch.cumprod": lambda: torch.cumprod(_x(), 0),
        "torch.cross": lambda: torch.cross(_x(4, 3), _x(4, 3), dim=1),
        "torch.meshgrid": lambda: torch.meshgrid(_x(3), _x(4), indexing="ij")[0],
        "torch.cartesian_prod": lambda: torch.cartesian_prod(_x(3), _x(4)),
        "torch.tensordot": lambda: torch.tensordot(_x(), _x(6, 4), 1),
        "torch.addmm": lambda: torch.addmm(_x(4), _x(3, 6), _x(6, 4)),
        "torch.matmul": lambda: torch.matmul(_x(2, 3, 6), _x(2, 6, 4)) + torch.matmul(_x(3, 6), _x(6)).sum(),
        "torch.bmm": lambda: torch.bmm(_x(2, 3, 6), _x(2, 6, 4)),
    }


def _layers() -> dict[str, Sample]:
    made: dict[str, Sample] = {
        "torch.nn.functional.glu": lambda: F.glu(_x()),
        "torch.nn.Threshold": _module("Threshold", 0.5, 0.0, shape=(4, 6)),
        "torch.nn.LayerNorm": _module("LayerNorm", 6, shape=(4, 6)),
        "torch.nn.GroupNorm": _module("GroupNorm", 2, 4, shape=(2, 4, 6)),
        "torch.nn.utils.weight_norm": lambda: _weight_normed()(_x()),
        "torch.nn.Identity": _module("Identity", shape=(4, 6)),
        "torch.nn.Linear": lambda: _make("Linear", 6, 3)(_x()),
        "torch.nn.Bilinear": lambda: _make("Bilinear", 6, 6, 3)(_x(), _x()),
        "torch.nn.dropout": lambda: F.dropout(_x()),
        "torch.nn.Embedding": lambda: _make("Embedding", 5, 3)(_ints(5, 4, 6)),
        "torch.nn.EmbeddingBag": lambda: _make("EmbeddingBag", 5, 3)(_ints(5, 4, 6)),
        "torch.nn.functional.one_hot": lambda: F.one_hot(_ints(5, 4), 5),
        "torch.nn.Upsample": lambda: (
            _make("Upsample", scale_factor=2)(_x(2, 4, 6)),
            _make("Upsample", scale_factor=2)(_x(2, 4, 6, 6)),
            _make("Upsample", scale_factor=2)(_x(2, 4, 3, 3, 3)),
            _make("Upsample", scale_factor=2, mode="bicubic")(_x(2, 4, 6, 6)),
        ),
        "torch.nn.ZeroPad2d": _module("ZeroPad2d", 1, shape=(2, 4, 6, 6)),
    }
    for n in (1, 2, 3):
        made |= {
            f"torch.nn.Conv{n}d": _module(f"Conv{n}d", 4, 3, 3, shape=_over_dims(n)),
            f"torch.nn.ConvTranspose{n}d": _module(f"ConvTranspose{n}d", 4, 3, 3, shape=_over_dims(n)),
            f"torch.nn.MaxPool{n}d": _module(f"MaxPool{n}d", 2, shape=_over_dims(n)),
            f"torch.nn.AvgPool{n}d": _module(f"AvgPool{n}d", 2, shape=_over_dims(n)),
            f"torch.nn.AdaptiveAvgPool{n}d": _module(f"AdaptiveAvgPool{n}d", 2, shape=_over_dims(n)),
            f"torch.nn.BatchNorm{n}d": _module(f"BatchNorm{n}d", 4, shape=_over_dims(n)),
            f"torch.nn.InstanceNorm{n}d": _module(f"InstanceNorm{n}d", 4, shape=_over_dims(n), affine=True),
            f"torch.nn.ConstantPad{n}d": _module(f"ConstantPad{n}d", 1, 0.5, shape=_over_dims(n)),
            f"torch.nn.ReplicationPad{n}d": _module(f"ReplicationPad{n}d", 1, shape=_over_dims(n)),
        }
        if n < 3:
            made[f"torch.nn.ReflectionPad{n}d"] = _module(f"ReflectionPad{n}d", 1, shape=_over_dims(n))
    for kind in ("RNN", "GRU", "LSTM"):
        made[f"torch.nn.{kind}"] = lambda kind=kind: _make(kind, 6, 3)(_x(5, 2, 6))[0]
    return made


def _losses() -> dict[str, Sample]:
    return {
        "torch.nn.L1Loss": lambda: _make("L1Loss")(_x(), _x()),
        "torch.nn.MSELoss": lambda: _make("MSELoss")(_x(), _x()),
        "torch.nn.CrossEntropyLoss": lambda: (
            _make("CrossEntropyLoss")(_x(), _ints(6, 4)),
            _make("CrossEntropyLoss")(_x(4, 6, 3, 3), _ints(6, 4, 3, 3)),
        ),
        "torch.nn.NLLLoss": lambda: (
            _make("NLLLoss")(_x(), _ints(6, 4)),
            _make("NLLLoss")(_x(4, 6, 3, 3), _ints(6, 4, 3, 3)),
        ),
        "torch.nn.BCELoss": lambda: _make("BCELoss")(_x(), _plain()),
        "torch.nn.KLDivLoss": lambda: _make("KLDivLoss", reduction="batchmean")(_x(), _plain()),
        "torch.nn.PoissonNLLLoss": lambda: _make("PoissonNLLLoss")(_x(), _plain()),
        "torch.nn.HingeEmbeddingLoss": lambda: _make("HingeEmbeddingLoss")(_x(), _signs(4, 6)),
        "torch.nn.BCEWithLogitsLoss": lambda: _make("BCEWithLogitsLoss")(_x(), _plain()),
        "torch.nn.SmoothL1Loss": lambda: _make("SmoothL1Loss")(_x(), _x()),
        "torch.nn.SoftMarginLoss": lambda: _make("SoftMarginLoss")(_x(), _signs(4, 6)),
        "torch.nn.CosineEmbeddingLoss": lambda: _make("CosineEmbeddingLoss")(_x(), _x(), _signs(4)),
        "torch.nn.MarginRankingLoss": lambda: _make("MarginRankingLoss")(_x(4), _x(4), _signs(4)),
        "torch.nn.TripletMarginLoss": lambda: _make("TripletMarginLoss")(_x(), _x(), _x()),
        "torch.nn.CTCLoss": lambda: _make("CTCLoss")(
            _x(8, 2, 5), _ints(5, 2, 3, low=1), _ints(9, 2, low=8), _ints(4, 2, low=3)
        ),
    }
