"""Checks the arguments before C code uses them: memory, dtypes, lengths, overlaps and hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from portwright.errors import UserError

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def check_arrays(arrays: Mapping[str, Tensor], dtypes: Mapping[str, tuple[torch.dtype, ...]]) -> int:
    """Gives the one length of all; a name without an entry in `dtypes` may be of any of FLOATS.

    An array named `x_out` may be `x` itself; else outputs (`..._out`, `out`, `accumulator`) share no memory with others.
    """
    length: int | None = None
    spans: list[tuple[int, int, str]] = []
    for name, array in arrays.items():
        check_memory(name, array)
        allowed = dtypes.get(name, FLOATS)
        if array.dtype not in allowed:
            valid = " or ".join(_short(dtype) for dtype in allowed)
            raise UserError(f"{name} is {_short(array.dtype)}.", f"Pass {valid}.")
        if length is None:
            length = array.numel()
        elif array.numel() != length:
            listed = ", ".join(f"{name} {array.numel()}" for name, array in arrays.items())
            raise UserError(f"Lengths differ: {listed}.", "Pass arrays of one length.")
        start = array.data_ptr()
        spans.append((start, start + length * array.element_size(), name))
    if length:
        _check_apart(sorted(spans))
    return length or 0


def check_memory(name: str, array: Tensor) -> None:
    if array.device.type != "cpu":
        raise UserError(f"{name} is on {array.device}.", "Pass an array in host memory.")
    if array.layout != torch.strided or not array.is_contiguous():
        raise UserError(f"{name} has gaps (shape {tuple(array.shape)}).", "Pass a contiguous array.")


def check_hyperparameters(
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int, grad_factor: float
) -> None:
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise UserError(f"beta1={beta1} and beta2={beta2} are not in [0, 1).", "Pass decay rates below 1.")
    if step < 1 or int(step) != step:
        raise UserError(f"step={step}: steps are counted from 1.", "Pass the number of this update.")
    others = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "grad_factor": grad_factor}
    wrong = [f"{name}={value}" for name, value in others.items() if not math.isfinite(value)]
    if wrong:
        raise UserError(
            f"{', '.join(wrong)}: not a finite number.", "Hold the step back, or pass a finite one."
        )


def _check_apart(spans: list[tuple[int, int, str]]) -> None:
    """Spans are in the order of memory: each is held against those that it could reach into."""
    for i, (start, end, name) in enumerate(spans):
        for other_start, other_end, other in spans[i + 1 :]:
            if other_start >= end:
                break
            written = [n for n in (name, other) if n.endswith("out") or n == "accumulator"]
            if not written:
                continue
            is_in_place = (start, end) == (other_start, other_end) and (
                name == f"{other}_out" or other == f"{name}_out"
            )
            if not is_in_place:
                reader = other if written[0] == name else name
                raise UserError(f"{written[0]} overlaps {reader}.", "Give it memory of its own.")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
