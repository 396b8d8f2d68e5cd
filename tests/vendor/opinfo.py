"""Cases drawn from torch's own operator database by a seed: the same seed and torch version give the same cases.

A case is a model whose forward calls one operator on tensors of the batch and squares what comes out into a loss. Samples with
an empty or sparse tensor are left out, and so are those that torch itself refuses on the CPU.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

_NUM_LOOKED_AT = 120  # samples of an operator that a draw chooses from


@dataclass(frozen=True)
class Drawn:
    """One operator call, as a model and a batch whose tensors all have a first dimension of one."""

    name: str  # 'nn.functional.conv2d/float32/function/17@3': operator, dtype, variant, sample, seed
    make_model: Callable[[], nn.Module]
    batch: tuple[Tensor, ...]
    train: bool


_DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


def draw(
    seed: int,
    num_samples: int = 3,
    names: Sequence[str] | None = None,
    dtypes: Sequence[torch.dtype] = _DTYPES,
) -> Iterator[Drawn]:
    """Up to `num_samples` cases of every operator, or of those that are named, in the first dtype that it has."""
    for op in _database():
        if names is None or _name_of(op) in names:
            yield from _draw_op(op, seed, num_samples, dtypes)


def operator_names() -> list[str]:
    return [_name_of(op) for op in _database()]


def _database() -> list[Any]:
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        # torch's own test module wants it for a base class that we do not use.
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def _draw_op(op: Any, seed: int, num_samples: int, dtypes: Sequence[torch.dtype]) -> Iterator[Drawn]:
    dtype = next((d for d in dtypes if d in op.dtypes), None)
    if dtype is None:
        return
    chance = random.Random(f"{seed}/{_name_of(op)}")
    _seed_all(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            samples = op.sample_inputs(
                "cpu", dtype, requires_grad=op.supports_autograd and dtype.is_floating_point
            )
            numbered = list(enumerate(itertools.islice(samples, _NUM_LOOKED_AT)))
        except Exception:  # a database entry that needs another machine
            return
        chance.shuffle(numbered)
        found = 0
        for index, sample in numbered:
            variant = "inplace" if op.inplace_variant and chance.random() < 0.15 else "function"
            name = f"{_name_of(op)}/{str(dtype)[6:]}/{variant}/{index}@{seed}"
            case = _case(name, _named(op, variant), sample, seed)
            if case is not None:
                yield case
                found += 1
                if found == num_samples:
                    return


def _named(op: Any, variant: str) -> Callable[..., Any]:
    """The operator by its name at the time of the call: the SDK's mixed precision replaces torch's attributes."""
    function = op.inplace_variant if variant == "inplace" else op.op
    for root, name in ((torch, op.name), (torch.Tensor, getattr(function, "__name__", op.name))):
        if _lookup(root, name) is function:
            return lambda *args, **kwargs: _lookup(root, name)(*args, **kwargs)
    return function  # type: ignore[no-any-return]


def _lookup(root: Any, name: str) -> Any:
    for part in name.split("."):
        root = getattr(root, part, None)
    return root


def _case(name: str, function: Callable[..., Any], sample: Any, seed: int) -> Drawn | None:
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [leaf.detach().clone() for leaf in leaves if isinstance(leaf, Tensor)]
    if any(t.layout != torch.strided or t.numel() == 0 or t.is_quantized for t in tensors):
        return None
    call = _Call(function, leaves, spec, sample.output_process_fn_grad)
    batch = tuple(tensor.unsqueeze(0) for tensor in tensors) or (torch.ones(1, 1),)

    def make_model() -> nn.Module:
        return OneOp(call)

    model = OneOp(call)
    try:
        _seed_all(seed)
        loss = model(*(tensor.clone() for tensor in batch))
        train = loss.requires_grad and model.reaches_loss
        if train:
            loss.backward()
    except Exception:  # torch refuses the call itself, or its gradient
        return None
    return Drawn(name, make_model, batch, train)


@dataclass(frozen=True)
class _Call:
    function: Callable[..., Any]
    leaves: list[Any]
    spec: Any
    process_output: Callable[[Any], Any]


class OneOp(nn.Module):
    """Calls one operator; a gradient flows into the inputs that may have one."""

    def __init__(self, call: _Call) -> None:
        super().__init__()
        self.call = call
        self.scale = nn.Parameter(torch.ones(1))
        self.reaches_loss = False

    def forward(self, *batch: Tensor) -> Tensor:
        rest = iter(batch)
        own: list[Any] = []
        lifted: list[Tensor] = []
        for leaf in self.call.leaves:
            if isinstance(leaf, Tensor):
                value = next(rest).squeeze(0)
                if leaf.requires_grad:
                    value = (value * self.scale.reshape([1] * value.dim())).to(value.dtype)  # half stays half
                    lifted.append(value)
                own.append(value)
            elif isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu"):
                own.append(self.scale.device)
            else:
                own.append(leaf)
        first, args, kwargs = tree_unflatten(own, self.call.spec)
        output = self.call.process_output(self.call.function(first, *args, **kwargs))
        leaves = tree_leaves(output)
        found = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.reaches_loss = any(leaf.requires_grad for leaf in found)
        parts = [
            (leaf.float() * leaf.float() if leaf.is_floating_point() else leaf.float()).mean()
            for leaf in found
        ]
        if not lifted or not found:
            parts.append((batch[0].float() * self.scale.reshape([1] * batch[0].dim())).mean())
        for leaf in leaves:
            if isinstance(leaf, (bool, int, float)):
                parts.append(parts[0] * leaf)
        return sum(parts[1:], start=parts[0])


def _name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def _seed_all(seed: int) -> None:
    import numpy

    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
