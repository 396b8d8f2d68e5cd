"""Records dropout calls, and turns dropout off where asked."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from portwright.verify.record_steps import Watch

_FUNCTIONAL = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)
_TORCH = ("dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_",
          "feature_alpha_dropout", "feature_alpha_dropout_")  # fmt: skip


@contextmanager
def without_dropout(module: nn.RNNBase) -> Iterator[None]:
    rate, module.dropout = module.dropout, 0.0
    try:
        yield
    finally:
        module.dropout = rate


def hook_dropout(watch: Watch, off: bool) -> None:
    for name in _FUNCTIONAL:
        if hasattr(F, name):
            setattr(F, name, _functional(watch, name, getattr(F, name), off))
    for name in _TORCH:
        if hasattr(torch, name):
            setattr(torch, name, _builtin(watch, name, getattr(torch, name), off))
    attention = F.scaled_dot_product_attention

    @functools.wraps(attention)
    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
               *args: Any, **kwargs: Any) -> Any:  # fmt: skip
        if dropout_p:
            # Counts attention weights, which other forms of attention may not have in this shape.
            watch.draw(
                "scaled_dot_product_attention", dropout_p, query.numel() // query.shape[-1] * key.shape[-2]
            )
            dropout_p = 0.0 if off else dropout_p
        return attention(query, key, value, attn_mask, dropout_p, *args, **kwargs)

    F.scaled_dot_product_attention = attend


def _functional(watch: Watch, name: str, function: Any, off: bool) -> Any:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def dropout(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if not given["training"] or not given["p"] or watch.in_dropout:
            return function(*args, **kwargs)
        watch.draw(name, given["p"], given["input"].numel())
        if off:
            return given["input"]
        watch.in_dropout = True  # one dropout function may call another
        try:
            return function(*args, **kwargs)
        finally:
            watch.in_dropout = False

    return dropout


def _builtin(watch: Watch, name: str, function: Any, off: bool) -> Any:
    @functools.wraps(function)
    def dropout(input: Any, p: float, train: bool) -> Any:
        if not train or not p or watch.in_dropout:
            return function(input, p, train)
        watch.draw(name.rstrip("_"), p, input.numel())
        return input if off else function(input, p, train)

    return dropout
