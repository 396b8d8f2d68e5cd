"""What an optimizer is on the device: its kind, and numbers that are either constants of the program or may change.

An optimizer reaches the device as a dictionary: attributes of the whole (`accumType`, ...), then for the defaults and
for every parameter group `{name: (value, is_const)}` under PopART's names.
"""

from __future__ import annotations

import enum
import math
import numbers
import struct
from collections.abc import Mapping
from typing import Any

import torch

from portwright.emulate.poptorch import enums, optim, poptorch_core
from portwright.emulate.poptorch._errors import AssertedError, refuse
from portwright.emulate.poptorch._logging import logger


class ValueRefused(poptorch_core.Error, ValueError):
    """Where the real package raises a ValueError."""


class _OptimizerType(enum.IntEnum):
    SGD1 = 0
    SGD2 = 1
    ADAM = 2
    ADAMW = 3
    ADAMW_NO_BIAS = 4
    RMSPROP = 5
    RMSPROP_CENTERED = 6
    LAMB = 7
    LAMB_NO_BIAS = 8


_CLASSES: dict[_OptimizerType, Any] = {
    _OptimizerType.SGD1: optim.SGD,
    _OptimizerType.SGD2: optim.SGD,
    _OptimizerType.ADAM: optim.Adam,
    _OptimizerType.ADAMW: optim.AdamW,
    _OptimizerType.ADAMW_NO_BIAS: optim.AdamW,
    _OptimizerType.RMSPROP: optim.RMSprop,
    _OptimizerType.RMSPROP_CENTERED: optim.RMSprop,
    _OptimizerType.LAMB: optim.LAMB,
    _OptimizerType.LAMB_NO_BIAS: optim.LAMB,
}
_TORCH = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
_OURS = (optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB)


# Of an optimizer and its groups: no attributes that the device could need. The executor sets the last one.
_NO_ATTRIBUTES = ("params", "defaults", "state", "param_groups", "variable_attrs", "state_dict")


class OptimizerAttrTracker:
    """Remembers the attributes of the first optimizer, and says once of each later one that it has no effect."""

    def __init__(self, opts):
        self._log = logger.debug if opts._relax_optimizer_checks else logger.warning
        self._of_groups: list[str] = []
        self._of_optimizer: list[str] = []
        self._is_first = True
        self._told: list[str] = []

    def look(self, optimizer: torch.optim.Optimizer, kind: _OptimizerType) -> None:
        self._check(self._of_groups, optimizer.defaults, "default", kind)
        self._check(self._of_optimizer, vars(optimizer), "attribute of the optimizer", kind)
        for index, group in enumerate(optimizer.param_groups):
            self._check(self._of_groups, group, f"attribute of group {index}", kind)
        self._is_first = False

    def _check(self, known: list[str], given: Mapping[str, Any], said: str, kind: _OptimizerType) -> None:
        new = [name for name in given if name not in known and name not in _NO_ATTRIBUTES]
        if self._is_first:
            known.extend(new)
            return
        message = (
            f"{', '.join(new)} ({said}) came after {kind.name} was compiled, and has no effect on the device"
        )
        if new and message not in self._told:
            self._told.append(message)
            self._log(message)


def convertOptimizerToDict(optimizer, attr_tracker, options, is_compiled):
    """The dictionary of an optimizer; half sums of gradients make `options` average them as they are added up."""
    kind = _kind_of(optimizer)
    if type(optimizer) not in (*_TORCH, *_OURS) and isinstance(optimizer, (*_TORCH, *_OURS)):
        logger.warning(
            "%s is derived from an optimizer that PopTorch knows: the device runs that one's formula, and no Python "
            "code of %s",
            type(optimizer).__name__,
            type(optimizer).__name__,
        )
    _settle_reduction(optimizer, options, is_compiled)
    automatic = is_automatic(options._Popart.options)
    variable = getattr(optimizer, "variable_attrs", None)
    if variable is not None and automatic:
        variable.markAsVariable("loss_scaling")
    converted = describe(optimizer, automatic)
    attr_tracker.look(optimizer, kind)
    logger.debug("optimizer %s", converted)
    return converted


def is_automatic(settings: Mapping[str, Any]) -> bool:
    """Whether PopART's settings have the loss scale change by itself."""
    return bool(settings.get("automaticLossScalingSettings.enabled", False))


def describe(optimizer: torch.optim.Optimizer, automatic_loss_scaling: bool = False) -> dict[str, Any]:
    """The dictionary alone, without a look at options or at attributes that have no effect."""
    kind = _kind_of(optimizer)
    known, variable = _CLASSES[kind], getattr(optimizer, "variable_attrs", None)
    described: dict[str, Any] = {"optimizer_type": kind}
    for name in known._child_only:
        if name in _OF_OPTIMIZER:
            default, check = _OF_OPTIMIZER[name]
            value = _found(getattr(optimizer, name, default), name, "optimizer")
            described[_camel_case(name)] = check(value, name)
    scaling = _found(getattr(optimizer, "loss_scaling", 1.0), "loss_scaling", "optimizer")
    is_const = scaling == 1.0 and not automatic_loss_scaling
    described["defaults"] = _describe_group(kind, optimizer.defaults, variable)
    described["defaults"]["lossScaling"] = _pair("loss_scaling", scaling, is_const, variable)
    described["groups"] = [_describe_group(kind, group, variable) for group in optimizer.param_groups]
    return described


def _describe_group(kind: _OptimizerType, group: dict[str, Any], variable: Any) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for name in _CLASSES[kind]._group_vars:
        if name == "amsgrad" and group[name]:
            raise refuse("amsgrad=True: there is no AMSGrad on an IPU. Leave it False.", ValueRefused)
        if name not in _OF_GROUP:
            continue
        default, constant = _OF_GROUP[name]
        if name == "weight_decay" and kind is _OptimizerType.ADAMW:
            constant = 1e-2  # torch's own default
        value = _found(group.get(name, default), name, "parameter group")
        pair = _pair(name, value, constant is _ALWAYS or bool(value == constant), variable)
        if name == "betas":
            described |= {"beta1": (value[0], pair[1]), "beta2": (value[1], pair[1])}
        else:
            described["learningRate" if name == "lr" else _camel_case(name)] = pair
    return described


def _pair(name: str, value: Any, is_const: bool, variable: Any) -> tuple[Any, bool]:
    """(value, is_const); without a word of the user (`variable_attrs`), the value says whether it is constant."""
    if name != "betas":
        _check_number(value, name)
    elif not isinstance(value, tuple) or len(value) != 2:
        raise refuse(f"{name} must be a pair of numbers, not {value!r}.", AssertedError)
    else:
        for index, one in enumerate(value):
            _check_number(one, f"{name}[{index}]")
    return value, is_const if variable is None else variable.isConstant(name)


def _settle_reduction(optimizer: Any, options: Any, is_compiled: bool) -> None:
    """Half sums would overflow if they were divided at the end: PopTorch averages them as they grow."""
    if getattr(optimizer, "accum_type", None) != torch.float16 or getattr(
        optimizer, "use_combined_accum", False
    ):
        return
    running = enums.MeanReductionStrategy.Running
    if not is_compiled:
        options._unfreeze()
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(running)
        options._freeze()
    elif options.Training.meanAccumulationAndReplicationReductionStrategy != running:
        raise refuse(
            "an optimizer with accum_type=torch.float16 needs MeanReductionStrategy.Running, but the model is already "
            "compiled with another one. Give trainingModel() such an optimizer from the start.",
            ValueRefused,
        )


def _is_half(dtype: Any, name: str) -> bool:
    if dtype not in (torch.float16, torch.float32):
        raise refuse(f"{name} must be torch.float16 or torch.float32, not {dtype}.", ValueRefused)
    return bool(dtype == torch.float16)


def _positive(value: Any, name: str) -> float:
    _check_number(value, name)
    if not value > 0:  # NaN too
        raise refuse(f"{name} must be larger than 0, not {value}.", ValueRefused)
    return float(value)


def _kind_of(optimizer):
    """What the device runs for an optimizer of poptorch.optim or torch.optim, or for one derived from them."""
    if isinstance(optimizer, torch.optim.SGD):
        return _OptimizerType.SGD1 if getattr(optimizer, "use_combined_accum", False) else _OptimizerType.SGD2
    if isinstance(optimizer, torch.optim.AdamW):  # before Adam, which newer versions of torch derive it from
        corrected = getattr(optimizer, "bias_correction", True)
        return _OptimizerType.ADAMW if corrected else _OptimizerType.ADAMW_NO_BIAS
    if isinstance(optimizer, torch.optim.Adam):
        if any(group.get("decoupled_weight_decay") for group in optimizer.param_groups):
            raise refuse(
                "Adam with decoupled_weight_decay=True is unknown to PopTorch. Use AdamW, which is the same.",
                ValueRefused,
            )
        return _OptimizerType.ADAM
    if isinstance(optimizer, torch.optim.RMSprop):
        centered = {bool(group["centered"]) for group in optimizer.param_groups}
        if len(centered) > 1:
            raise refuse(
                "RMSprop on an IPU: 'centered' must be the same in every parameter group.", AssertedError
            )
        return _OptimizerType.RMSPROP_CENTERED if True in centered else _OptimizerType.RMSPROP
    if isinstance(optimizer, optim.LAMB):
        return _OptimizerType.LAMB if optimizer.bias_correction else _OptimizerType.LAMB_NO_BIAS
    raise refuse(
        f"PopTorch does not know the optimizer {type(optimizer).__name__}. It takes SGD, Adam, AdamW and RMSprop of "
        "poptorch.optim or torch.optim, and poptorch.optim.LAMB.",
        AssertedError,
    )


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _check_number(value: Any, name: str) -> None:
    if not isinstance(value, numbers.Number):
        raise refuse(f"{name} must be a number, not {value!r} ({type(value).__name__}).", AssertedError)


def _found(value: Any, name: str, where: str) -> Any:
    if value is None:
        raise refuse(f"the {where} has no {name}, which the device needs.", AssertedError)
    return value


_ALWAYS = object()
_OF_GROUP: dict[
    str, tuple[Any, Any]
] = {  # where a group has none, and the value that is a constant of the program
    "lr": (None, None),
    "weight_decay": (None, 0.0),
    "momentum": (None, 0.0),
    "velocity_scaling": (1.0, 1.0),
    "dampening": (None, 0.0),
    "eps": (None, 1e-08),
    "max_weight_norm": (None, optim.FP16_MAX_NORM),
    "alpha": (None, _ALWAYS),
    "nesterov": (None, _ALWAYS),
    "betas": (None, _ALWAYS),
}
_OF_OPTIMIZER: dict[str, tuple[Any, Any]] = {  # where an optimizer has none, and what is made of it
    "accum_type": (torch.float32, _is_half),
    "velocity_accum_type": (torch.float32, _is_half),
    "first_order_momentum_accum_type": (torch.float32, _is_half),
    "second_order_momentum_accum_type": (torch.float32, _is_half),
    "use_tf_variant": (False, lambda value, name: value),
    "max_grad_norm": (math.inf, _positive),
}


_TORCH_NAMES = {"learningRate": "lr", "beta1": "betas", "beta2": "betas"}


def check_values(description: Mapping[str, Any]) -> None:
    """PopART's own limits, which torch's constructors do not know or which were passed by later."""
    scaling = description["defaults"]["lossScaling"][0]
    if not scaling or not math.isfinite(scaling):
        raise refuse(f"loss_scaling must be a finite number other than 0, not {scaling}.")
    for group in (description["defaults"], *description["groups"]):
        for name, (value, is_const) in group.items():
            if (value < 0 and name != "lossScaling") or math.isnan(value):
                raise refuse(
                    f"{_torch_name(name)} of an optimizer must be a number that is not negative, and is {value}."
                )
            if name in ("eps", "velocityScaling") and value <= 0:
                raise refuse(f"{_torch_name(name)} must be larger than 0 on the device: {value}.")
            if name in ("beta1", "beta2") and value >= 1:
                raise refuse(f"{name} must be smaller than 1: {value}.")
            if name == "learningRate" and value == 0 and is_const:
                raise refuse("lr is 0 and constant, so that nothing would ever train. Mark it as variable.")
        if group.get("nesterov", (0, True))[0] and group["dampening"][0]:
            raise refuse(f"nesterov needs a dampening of 0, not {group['dampening'][0]}.")


def check_replacement(
    old: Mapping[str, Any], new: Mapping[str, Any], optimizer: torch.optim.Optimizer
) -> None:
    if old["optimizer_type"] != new["optimizer_type"]:
        raise refuse(
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
        raise refuse(
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
            _check_unchanged(number, where, (value, is_const), after[number], optimizer)


def _check_unchanged(
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
    raise refuse(f"{name} of {where} was compiled as {kinds[old[1]]} ({old[0]}) and {change}. {cure}.")


def _torch_name(number: str) -> str:
    found = _TORCH_NAMES.get(number)
    return found or "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in number)


def _single(value: float) -> float:
    """The value as the device has it: a float of 32 bits."""
    number: float = struct.unpack("f", struct.pack("f", value))[0]
    return number
