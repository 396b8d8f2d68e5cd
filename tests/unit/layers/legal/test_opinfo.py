"""Torch's own samples of the ops that have a form: whatever call is redirected gives what torch gives."""

from __future__ import annotations

import importlib.util
import random
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from portwright.errors import UserError
from portwright.layers.legal.calls import CallLog
from portwright.legal_forms import FORMS

NAMES = {
    name.replace("F.", "nn.functional.").removeprefix("torch.").removeprefix("Tensor.").rstrip("_")
    for form in FORMS
    for name in form.replaces
} | {"__getitem__"}
MOST_SAMPLES = 12
TIES = {"kthvalue", "median", "mode"}
"""Of equal values any may be named; whole numbers have many."""


@pytest.fixture(scope="module")
def ops() -> list[Any]:
    """Torch's database wants a package for its own tests, of which it needs one name here."""
    lent = importlib.util.find_spec("expecttest") is None
    if lent:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        stand_in.assert_expected_inline = None  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.testing._internal.common_methods_invocations import op_db
    finally:
        if lent:
            del sys.modules["expecttest"]
    return [op for op in op_db if op.name in NAMES]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_redirected_samples(ops: list[Any], dtype: torch.dtype) -> None:
    num_redirected, wrong = 0, []
    chosen = random.Random(0)
    for op in ops:
        for variant, sample in _samples(op, dtype, chosen):
            log = CallLog("csx")
            expected, received = _try(variant, sample, None), _try(variant, sample, log)
            if not log.swaps:  # a method may go another way than its function
                continue
            num_redirected += 1
            if isinstance(expected, Exception):
                continue  # torch refuses it too, in its own words
            if isinstance(received, UserError):
                continue  # what depends on the data
            difference = _difference(expected, received)
            if difference and not (op.name in TIES and dtype == torch.int64):
                wrong.append(f"{op.name}: {log.swaps[0].form}: {difference}: {sample.summary()}")
    assert not wrong, "\n".join(wrong)
    assert num_redirected > (300 if dtype == torch.float64 else 20)


def _samples(op: Any, dtype: torch.dtype, chosen: random.Random) -> Iterator[tuple[Callable[..., Any], Any]]:
    if not op.supports_dtype(dtype, "cpu"):
        return
    wants_gradient = dtype.is_floating_point and op.supports_autograd
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=wants_gradient))
    redirected = [sample for sample in samples if _is_redirected(op.op, sample)]
    for sample in chosen.sample(redirected, min(MOST_SAMPLES, len(redirected))):
        yield op.op, sample
        if op.method_variant is not None:
            yield op.method_variant, sample


def _is_redirected(function: Callable[..., Any], sample: Any) -> bool:
    log = CallLog("csx")
    _try(function, sample, log)
    return bool(log.swaps)


def _try(function: Callable[..., Any], sample: Any, log: CallLog | None) -> Any:
    """The tensors that come out and the gradients of those that go in, or the exception."""

    def fresh(value: Any) -> Any:
        return (
            value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value
        )

    args, kwargs = tree_map(fresh, (sample.input, *sample.args)), tree_map(fresh, sample.kwargs)
    try:
        if log is None:
            output = function(*args, **kwargs)
        else:
            with log.redirecting(nn.Identity()):
                output = function(*args, **kwargs)
    except Exception as error:
        return error
    outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad]
    generator = torch.Generator().manual_seed(0)
    parts = [
        (leaf * torch.rand(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.dtype)).sum()
        for leaf in outputs
        if leaf.requires_grad
    ]
    gradients = torch.autograd.grad(sum(parts), inputs, allow_unused=True) if parts and inputs else ()
    return outputs, [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients, strict=False)]


def _difference(expected: Any, received: Any) -> str:
    if isinstance(received, Exception):
        return f"{type(received).__name__}: {received}"
    for kind, theirs, ours in zip(("value", "gradient"), expected, received, strict=True):
        if len(theirs) != len(ours):
            return f"{len(ours)} {kind}s for {len(theirs)}"
        for a, b in zip(theirs, ours, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"{kind} {tuple(b.shape)} {b.dtype} for {tuple(a.shape)} {a.dtype}"
            if not torch.allclose(a.double(), b.double(), rtol=1e-6, atol=1e-6, equal_nan=True):
                return f"{kind} differs by {(a.double() - b.double()).abs().max()}"
    return ""
