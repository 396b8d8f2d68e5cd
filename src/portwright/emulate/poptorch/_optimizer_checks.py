"""What the device refuses of an optimizer: numbers out of PopART's range, and constants that changed after compilation."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import torch

from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._impl import createPoptorchError
from portwright.emulate.poptorch._optimizer_attributes import ValueRefused, _OptimizerType

_TORCH_NAMES = {"learningRate": "lr", "beta1": "betas", "beta2": "betas"}


def check_values(description: Mapping[str, Any]) -> None:
    """PopART's own limits, which torch's constructors do not know or which were passed by later."""
    scaling = description["defaults"]["lossScaling"][0]
    if not scaling or not math.isfinite(scaling):
        raise createPoptorchError(f"loss_scaling must be a finite number other than 0, not {scaling}.")
    for numbers in (description["defaults"], *description["groups"]):
        for name, (value, is_const) in numbers.items():
            if (value < 0 and name != "lossScaling") or math.isnan(value):
                raise createPoptorchError(
                    f"{_torch_name(name)} of an optimizer must be a number that is not negative, and is {value}."
                )
            if name in ("eps", "velocityScaling") and value <= 0:
                raise createPoptorchError(
                    f"{_torch_name(name)} must be larger than 0 on the device: {value}."
                )
            if name in ("beta1", "beta2") and value >= 1:
                raise createPoptorchError(f"{name} must be smaller than 1: {value}.")
            if name == "learningRate" and value == 0 and is_const:
                raise createPoptorchError(
                    "lr is 0 and constant, so that nothing would ever train. Mark it as variable."
                )
        if numbers.get("nesterov", (0, True))[0] and numbers["dampening"][0]:
            raise createPoptorchError(f"nesterov needs a dampening of 0, not {numbers['dampening'][0]}.")


def check_replacement(
    old: Mapping[str, Any], new: Mapping[str, Any], optimizer: torch.optim.Optimizer
) -> None:
    if old["optimizer_type"] != new["optimizer_type"]:
        raise createPoptorchError(
            f"the model was compiled with {old['optimizer_type'].name}, and cannot go on with "
            f"{new['optimizer_type'].name}. Make a new trainingModel()."
        )
    for name in old:
        if name not in ("optimizer_type", "defaults", "groups") and old[name] != new[name]:
            raise refuse(
                f"{_torch_name(name)} is part of the program, which is already compiled, and cannot change any more "
                f"({old[name]} became {new[name]}). Make a new trainingModel().",
                ValueRefused,
            )
    if len(old["groups"]) != len(new["groups"]):
        raise createPoptorchError(
            f"the model was compiled with {len(old['groups'])} parameter groups, and setOptimizer() got {len(new['groups'])}."
        )
    pairs = [("the defaults", old["defaults"], new["defaults"])]
    pairs += [
        (f"group {index}", a, b)
        for index, (a, b) in enumerate(zip(old["groups"], new["groups"], strict=True))
    ]
    for where, before, after in pairs:
        for number, (value, is_const) in before.items():
            if number == "velocityScaling" and old["optimizer_type"] is _OptimizerType.SGD2:
                continue  # the separate velocity is scaled like the loss, and a group's own number has no part in it
            _check_number(number, where, (value, is_const), after[number], optimizer)


def _check_number(
    number: str,
    where: str,
    old: tuple[float, bool],
    new: tuple[float, bool],
    optimizer: torch.optim.Optimizer,
) -> None:
    name = _torch_name(number)
    if old[1] == new[1] and not (old[1] and _single(old[0]) != _single(new[0])):
        return
    if hasattr(optimizer, "variable_attrs"):
        cure = f"Call optimizer.variable_attrs.markAs{'Constant' if not new[1] else 'Variable'}({name!r}) to match"
        if old[1] and new[1]:
            cure = f"Pass {name} to the optimizer, or call optimizer.variable_attrs.markAsVariable({name!r}), before compiling"
    else:
        cure = f"With poptorch.optim.{type(optimizer).__name__}, what is passed to the optimizer may change later"
    kinds = {True: "a constant", False: "variable"}
    change = f"changed from {old[0]} to {new[0]}" if old[1] == new[1] else f"is now {kinds[new[1]]}"
    raise createPoptorchError(
        f"{name} of {where} was compiled as {kinds[old[1]]} ({old[0]}) and {change}. {cure}."
    )


def _torch_name(number: str) -> str:
    found = _TORCH_NAMES.get(number)
    return found or "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in number)


def _single(value: float) -> float:
    """The value as the device has it: a float of 32 bits."""
    number: float = struct.unpack("f", struct.pack("f", value))[0]
    return number
